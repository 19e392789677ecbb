package graph

// MapPredictions is mapPredictions, for tests.
var MapPredictions = mapPredictions
