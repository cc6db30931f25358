"""What people open: doors (cli, serve, classifier) and the jobs behind them."""
