class Plugin:
    def after_step(self, trainer):
        pass
