"""Critical path of each traced step: the chain of work, transfers and launches that it lasts."""
