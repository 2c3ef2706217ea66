from trainhooks import hookimpl


class Plugin:
    def __init__(self, project: str) -> None:
        self.project = project

    @hookimpl
    def after_step(self):
        pass
