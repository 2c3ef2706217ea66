"""The one rule of order, through real trainers and by itself."""

import itertools
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainhooks import Trainer, UsageError, hookimpl
from trainhooks.manager import Plugin
from trainhooks.order import PHASES, SOURCES, Place, sort

NAMES = ("p1", "p2", "p3", "p4", "p5")
#: What a plugin's function of the hook can be, in the order in which pluggy calls them.
KINDS = ("first wrapper", "wrapper", "last wrapper", "first", "plain", "last")


@dataclass
class Facts:
    """What is random about one plugin."""

    name: str
    phase: str
    source: str
    kind: str
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    key: tuple = field(default=())


@st.composite
def five(draw):
    """Five plugins whose declarations hold in one hidden order, so that there is no cycle."""
    hidden = draw(st.permutations(NAMES))
    found = []
    for name in NAMES:
        earlier, later = hidden[: hidden.index(name)], hidden[hidden.index(name) + 1 :]
        found.append(
            Facts(
                name,
                draw(st.sampled_from(PHASES)),
                draw(st.sampled_from(("project", "installed", "built-in"))),
                draw(st.sampled_from(KINDS)),
                before=tuple(draw(st.lists(st.sampled_from([*later, "absent"]), max_size=2))),
                after=tuple(draw(st.lists(st.sampled_from([*earlier, "absent"]), max_size=2))),
            )
        )
    return found


def make(facts, log):
    """Return a plugin that logs its call, a wrapper on both sides of its yield."""
    name = facts.name

    def plain():
        log.append(name)

    def wrapper():
        log.append(name)
        yield
        log.append(f"{name} again")

    mark = hookimpl(
        specname="after_step",
        wrapper="wrapper" in facts.kind,
        tryfirst=facts.kind.startswith("first"),
        trylast=facts.kind.startswith("last"),
    )
    function = mark(wrapper if "wrapper" in facts.kind else plain)
    members = {"phase": facts.phase, "before": facts.before, "after": facts.after, "function": staticmethod(function)}
    return Plugin(name, type(name, (), members)(), facts.source)


def relations(plugins):
    """Return all declared (earlier, later) pairs of plugins that are there."""
    for one in plugins:
        for other in plugins:
            if other.name in one.before:
                yield one.name, other.name
            if other.name in one.after:
                yield other.name, one.name


@pytest.fixture(scope="module")
def trainer():
    """One trainer for all examples: a plugin set is added, a step is trained, the set is taken out again."""
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    return Trainer(
        model, loss=torch.nn.functional.mse_loss, optimizer=optimizer, autoload=False, max_steps=0,
        loaders={"train": [(torch.ones(1, 1), torch.ones(1, 1))]},
    )  # fmt: skip


def calls(trainer, plugins):
    """Return who is called in what order when ``plugins`` are registered one after the other."""
    log = []
    for facts in plugins:
        trainer.manager.add(make(facts, log))
    trainer.hooks.after_step(trainer=trainer, batch=None, output={})
    for facts in plugins:
        trainer.manager.remove(facts.name)
    return log


def by_rule(found, plugins):
    """Assert that a sequence of names fits the rule, stated without any sorting algorithm."""
    place = {name: number for number, name in enumerate(found)}
    for earlier, later in relations(plugins):
        assert place[earlier] < place[later]
    related = {name for pair in relations(plugins) for name in pair}
    free = [one for one in plugins if one.name not in related]
    keys = [
        (PHASES.index(one.phase), SOURCES.index(one.source), one.name) for one in sorted(free, key=lambda one: place[one.name])
    ]
    assert keys == sorted(keys)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plugins=five())
def test_calls_are_the_same_in_all_120_permutations(plugins, trainer):
    expected = calls(trainer, plugins)
    for order in itertools.permutations(plugins):
        assert calls(trainer, order) == expected
    entered = [name for name in expected if "again" not in name]
    kinds = {one.name: one.kind for one in plugins}
    # tryfirst before plain before trylast, wrappers around all of them; within each of these the rule.
    assert [KINDS.index(kinds[name]) for name in entered] == sorted(KINDS.index(kinds[name]) for name in entered)
    everybody = list(trainer_order(trainer, plugins))
    by_rule(everybody, plugins)
    for kind in KINDS:
        assert [name for name in entered if kinds[name] == kind] == [name for name in everybody if kinds[name] == kind]
    # wrappers leave in the reverse of the order in which they were entered
    wrappers = [name for name in entered if "wrapper" in kinds[name]]
    assert [name for name in expected if "again" in name] == [f"{name} again" for name in reversed(wrappers)]


def trainer_order(trainer, plugins):
    trainer.manager.add(*(make(facts, []) for facts in plugins))
    names = list(trainer.plugins)
    for name in names:
        trainer.manager.remove(name)
    return names


@settings(max_examples=200, deadline=None)
@given(plugins=five())
def test_declarations_hold_and_the_rest_follows_phase_closeness_and_name(plugins):
    places = [Place(one.name, one.phase, one.source, 0, one.before, one.after) for one in plugins]
    found = sort(places)
    by_rule(found, plugins)
    # who is not related to anybody has no influence on the others
    related = {name for pair in relations(plugins) for name in pair}
    for one in plugins:
        if one.name not in related:
            assert sort([place for place in places if place.name != one.name]) == [name for name in found if name != one.name]


@settings(max_examples=200, deadline=None)
@given(plugins=five(), data=st.data())
def test_a_relation_that_already_holds_for_neighbours_changes_nothing(plugins, data):
    """What is declared decides no more than it says."""
    places = {one.name: Place(one.name, one.phase, one.source, 0, (), ()) for one in plugins}
    found = sort(list(places.values()))
    number = data.draw(st.integers(0, 3))
    earlier, later = found[number : number + 2]
    for name, declared in ((earlier, {"before": (later,)}), (later, {"after": (earlier,)})):
        one = places[name]
        changed = {**places, name: Place(one.name, one.phase, one.source, 0, **declared)}
        assert sort(list(changed.values())) == found


@settings(max_examples=100, deadline=None)
@given(plugins=five(), data=st.data())
def test_any_cycle_is_found_and_printed(plugins, data):
    """Close a chain of declarations: the message names each link and who declared it."""
    names = data.draw(st.lists(st.sampled_from(NAMES), min_size=2, max_size=5, unique=True))
    places = []
    for number, name in enumerate(names):
        forward = data.draw(st.booleans())
        places.append((name, names[(number + 1) % len(names)], forward))
    declared = {name: ([], []) for name in NAMES}
    for earlier, later, forward in places:
        declared[earlier if forward else later][0 if forward else 1].append(later if forward else earlier)
    with pytest.raises(UsageError) as caught:
        sort([Place(name, before=tuple(before), after=tuple(after)) for name, (before, after) in declared.items()])
    path = str(caught.value).splitlines()[0].rpartition(": ")[2].split(" → ")
    assert path[0] == path[-1]
    assert sorted(path[:-1]) == sorted(names)
    for earlier, later, forward in places:
        link = (
            f"{earlier} before {later}, declared by {earlier!r}"
            if forward
            else f"{later} after {earlier}, declared by {later!r}"
        )
        assert link in str(caught.value)


def test_objects_keep_the_order_of_their_list_within_a_phase(make_trainer):
    log = []
    plugins = [make(Facts(name, "algorithm", "object", "plain"), log).object for name in ("z", "a", "m")]
    make_trainer(plugins, values=(1.0,)).train()
    assert log == ["z", "a", "m"]


def test_closest_to_the_user_comes_first_within_a_phase():
    places = [Place(f"from_{source}", source=source) for source in reversed(SOURCES)]
    assert sort(places) == [f"from_{source}" for source in SOURCES]


def test_the_engine_is_last_whatever_the_phase(make_trainer):
    class Late:
        phase = "reporting"

        @hookimpl(trylast=True)
        def compute_loss(self, trainer, batch):
            return trainer.model(batch) * 2

    trainer = make_trainer([Late()], values=(1.0,))
    trainer.train()
    assert trainer.model.w.item() == -2.0  # the gradient of 2 w x is 2


def test_a_name_means_its_second_instances_too():
    places = [Place("checkpoint@best"), Place("checkpoint"), Place("z", before=("checkpoint",))]
    assert sort(places) == ["z", "checkpoint", "checkpoint@best"]
    assert sort([Place("a", after=("checkpoint@best",)), Place("checkpoint@best")]) == ["checkpoint@best", "a"]


def test_absent_names_and_oneself_are_ignored():
    assert sort([Place("b", before=("missing", "b")), Place("a", after=("gone",))]) == ["a", "b"]


def test_a_cycle_through_register_leaves_everything_as_it_was(make_trainer):
    class A:
        after = ("b",)

        @hookimpl
        def after_step(self): ...

    class B(A):
        after = ("a",)

    trainer = make_trainer([A()])
    with pytest.raises(UsageError, match="a → b → a|b → a → b"):
        trainer.register(B())
    assert list(trainer.plugins) == ["a"]
    assert trainer.train().step == 10
