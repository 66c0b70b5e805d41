"""What becomes of requests, gangs, slots and executors: steps that handlers and the cycle share."""
