plugin = None
