"""A tuned model behind HTTP: prediction, heat maps, new classes, and a web page to try it."""
