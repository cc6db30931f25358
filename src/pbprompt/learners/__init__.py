"""What every learner is, what it may remember, and the plainest of them: the names alone."""
