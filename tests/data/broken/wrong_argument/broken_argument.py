from trainhooks import hookimpl


class Plugin:
    @hookimpl
    def after_train(self, runner):
        pass
