module stationmaster.dev/stationmaster/internal/wire/jsonscan/testdata/peers

go 1.26.8

require github.com/goccy/go-json v0.10.5
