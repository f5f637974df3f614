"""How ranks are started and ended: launchers, binding, who ends with whom."""
