"""Times samples from a vocabulary that is split over ranks, beside the gather that they take the place of."""
