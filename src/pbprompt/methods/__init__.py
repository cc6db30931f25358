"""One file per method: its settings, its class, its formula."""
