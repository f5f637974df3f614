"""Makes the Executors that work runs on. All other code knows an Executor, and none of these."""
