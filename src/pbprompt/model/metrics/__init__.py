"""What a model's predictions are worth: the tasks of the field and the figures that sum them up."""
