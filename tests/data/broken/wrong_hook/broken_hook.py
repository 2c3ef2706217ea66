from trainhooks import hookimpl


class Plugin:
    @hookimpl
    def after_stepp(self):
        pass
