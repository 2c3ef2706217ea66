import a_dependency_that_is_not_installed


class Plugin:
    seen = a_dependency_that_is_not_installed
