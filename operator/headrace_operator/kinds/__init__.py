"""One module for each kind: it applies what resources ask for and reports the result in their status."""
