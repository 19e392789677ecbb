package translate

import (
	"slices"

	"stationmaster.dev/stationmaster/internal/wire/jsonscan"
)

// members reads an object's members, each once. What field says isn't known is refused unless it is
// null: a translation that passed over it would answer something else than was asked.
func members(body []byte, field func(s *jsonscan.Scanner, key string) (known bool, err error)) error {
	s := jsonscan.New(body)
	seen := map[string]bool{}
	err := s.Object(func(k []byte) error {
		key := string(k)
		if seen[key] {
			return invalid("%q comes twice", key)
		}
		seen[key] = true
		if s.Peek() == 'n' {
			_, err := s.Skip()
			return err
		}
		known, err := field(s, key)
		if err != nil || known {
			return err
		}
		_, err = s.Skip()
		if err == nil {
			err = invalid("%q has no counterpart in the protocol of this model's engine: leave it out", key)
		}
		return err
	})
	if err != nil {
		return err
	}
	return s.End()
}

// some reads past members that change nothing of an answer.
func some(s *jsonscan.Scanner, key string, ignored ...string) (bool, error) {
	if !slices.Contains(ignored, key) {
		return false, nil
	}
	_, err := s.Skip()
	return true, err
}

func readText(s *jsonscan.Scanner, key string) ([]byte, error) {
	if s.Peek() != '"' {
		return nil, invalid("%s must be a text", key)
	}
	return s.String()
}

// readTexts reads a text or a list of them.
func readTexts(s *jsonscan.Scanner, key string) ([][]byte, error) {
	if s.Peek() != '[' {
		text, err := readText(s, key)
		return [][]byte{text}, err
	}
	texts := [][]byte{}
	err := s.Array(func(int) error {
		text, err := readText(s, key)
		texts = append(texts, text)
		return err
	})
	if err == nil && len(texts) == 0 {
		err = invalid("%s is empty", key)
	}
	return texts, err
}

func readBool(s *jsonscan.Scanner, key string) (bool, error) {
	switch {
	case s.Literal("true"):
		return true, nil
	case s.Literal("false"):
		return false, nil
	}
	return false, invalid("%s must be true or false", key)
}

// appendUsage appends how many tokens an answer used; 0 stands for not counted.
func appendUsage(dst []byte, tokens int) []byte {
	dst = append(dst, `"usage":{"prompt_tokens":`...)
	dst = appendInt(dst, tokens)
	dst = append(dst, `,"total_tokens":`...)
	return append(appendInt(dst, tokens), '}')
}
