"""The sweep: plan, workers, driver, journal."""
