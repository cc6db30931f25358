"""Prompt learners that PBPrompt is compared with, one a file."""
