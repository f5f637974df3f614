"""What a run would do on machines not at hand: costs of collectives, step times, efficiency, best scheme."""
