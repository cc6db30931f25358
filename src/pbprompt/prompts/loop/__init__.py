"""Frozen features and the one training loop; no method's name appears here."""
