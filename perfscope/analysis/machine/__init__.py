"""What the machine did while the training ran: counters, ceilings, links, placement, disturbances."""
