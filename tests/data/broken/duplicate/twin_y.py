from trainhooks import hookimpl


class Plugin:
    @hookimpl
    def after_step(self):
        pass
