package gateway

import (
	"encoding/hex"
	"math/rand/v2"
)

// requestID returns the client's identifier if it is fit to be logged and sent on: 1 to 128
// letters, digits and "-_.:/+=@". Otherwise it makes one of 128 random bits.
func requestID(given []string) string {
	if len(given) == 1 && validID(given[0]) {
		return given[0]
	}
	var raw [16]byte
	high, low := rand.Uint64(), rand.Uint64()
	for i := range 8 {
		raw[i], raw[8+i] = byte(high>>(8*i)), byte(low>>(8*i))
	}
	var out [32]byte
	hex.Encode(out[:], raw[:])
	return string(out[:])
}

func validID(id string) bool {
	if id == "" || len(id) > 128 {
		return false
	}
	for i := range len(id) {
		switch c := id[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case c == '-', c == '_', c == '.', c == ':', c == '/', c == '+', c == '=', c == '@':
		default:
			return false
		}
	}
	return true
}
