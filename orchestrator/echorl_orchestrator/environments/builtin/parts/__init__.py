"""What several built-in environments are made of: tasks, questions, prompts, a file tree, solvers."""
