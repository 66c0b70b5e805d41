"""Events of jobs and of resource groups."""
