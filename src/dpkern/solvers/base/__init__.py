"""What every solver rests on: its declaration, the run, the objective, the result."""
