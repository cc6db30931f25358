"""Answers on any number of images."""

from pbprompt.apps.batch.job import BatchJob, answers

__all__ = ["BatchJob", "answers"]
