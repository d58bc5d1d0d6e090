"""The role that prepares an attempt in a cluster: fetches and checks the model, cleans, chooses where to resume."""
