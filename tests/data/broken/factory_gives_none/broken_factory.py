def make():
    return None
