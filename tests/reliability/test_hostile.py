"""Hostile run folders: some of each kind, and whether the checks see a reader that obeys them."""

import os

import hostile
import pytest


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Return the run of a real training as a template."""
    place = hostile.Place(tmp_path_factory.mktemp("hostile"))
    place.make()
    return place


@pytest.mark.slow
def test_some_of_every_kind():
    cases, results = hostile.explore(scale=0.02)
    counters = hostile.count(cases, results)
    assert [one for one in results if one["faults"]] == []
    assert counters.pop("hostile") >= 15
    assert set(counters.values()) == {0}


def test_at_full_scale_there_are_more_than_two_hundred(tmp_path):
    names = [case.name for case in hostile.all_cases(hostile.Place(tmp_path))]
    assert len(names) >= 200
    assert len(names) == len(set(names))


def test_every_command_works_where_nothing_is_hostile(place):
    """Else a refusal of something else would pass for one of what is planted."""
    results = hostile.try_case(place, hostile.Case("nothing", lambda _here: None))
    assert {one["command"]: (one["code"], one["faults"]) for one in results} == dict.fromkeys(place.commands(), (0, []))


def test_a_reader_that_obeys_is_found(place, monkeypatch):
    """The suite's own test: commands that run, write, hang and raise."""
    code = hostile.payloads(place.marker)["pickle of exec"]

    def obey(words):
        import pickle

        act = words[0]
        if act == "evaluate":
            pickle.loads((place.newer / "state.json").read_bytes())
        elif act == "predict":
            (place.outside / "secret.txt").write_text("changed")
        elif act == "runs":
            print("Traceback (most recent call last):")
        elif act == "train":
            os.kill(os.getpid(), 9)
        return 1

    monkeypatch.setattr(hostile, "command", obey)
    case = hostile.Case("pickle", lambda here: hostile.put(here.newer / "state.json", code))
    results = hostile.try_case(place, case, ("evaluate", "predict", "runs", "resume"))
    counters = hostile.count(1, results)
    assert (counters["exec"], counters["untyped"], counters["died"]) == (1, 1, 1)
    assert counters["outside"] == 2  # what is written beside the run, and the payload's marker
    monkeypatch.setattr(hostile, "command", lambda _words: os.read(os.pipe()[0], 1))
    monkeypatch.setattr(hostile, "SILENCE_S", 2.0)
    assert hostile.count(1, hostile.try_case(place, case, ("evaluate",)))["hangs"] == 1
