from trainhooks import hookimpl


class Plugins:
    @hookimpl
    def after_step(self):
        pass
