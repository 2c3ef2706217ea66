class Plugin
    pass
