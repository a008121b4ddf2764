"""Documents -> a token store on disk, which training reads by index."""
