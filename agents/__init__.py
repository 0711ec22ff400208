"""From failures to causes, bug reports and op-gap patches."""
