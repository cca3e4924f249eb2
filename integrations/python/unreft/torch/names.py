"""The names by which parameters, buffers and modules are stored."""

# What wrappers put into them.
_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.")


def clean(name: str) -> str:
    """The name without what wrappers of modules put into it."""
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def clean_module(name: str) -> str:
    """As `clean`, of a module, which may be what a wrapper wraps."""
    return clean(f"{name}.")[:-1]
