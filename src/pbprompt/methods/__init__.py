"""One file a method: its settings, its class, its formula."""
