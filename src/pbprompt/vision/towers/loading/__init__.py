"""Checkpoints of every usual format -> a frozen backbone."""
