package pick

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

var noon = time.Unix(1_800_000_000, 0)

// hashesOf are the hashes of a prompt's blocks.
func hashesOf(prompt []byte) []uint64 {
	var b Blocks
	b.Begin("")
	_, _ = b.Write(prompt)
	return slices.Clone(b.Hashes())
}

func TestBlocksEndWhereTheyShould(t *testing.T) {
	want := []int{128, 256, 384, 512, 640, 768, 896, 1024, 1152, 1280, 1408, 1536, 1664, 1792, 1920, 2048, 2304}
	for i, end := range want {
		if got := blockEnd(i); got != end {
			t.Errorf("block %d ends at %d, want %d", i, got, end)
		}
	}
	if got := blockEnd(MaxBlocks - 1); got != 2<<20 {
		t.Errorf("the last block ends at %d", got)
	}
	for i := perOctave; i < MaxBlocks; i++ {
		if size := blockEnd(i) - blockEnd(i-1); size*8 > blockEnd(i) {
			t.Errorf("block %d has %d bytes, more than an eighth of what ends there", i, size)
		}
	}
}

func TestPromptsShareTheBlocksOfWhatTheyShare(t *testing.T) {
	a, b := promptOf(1, 10_000), promptOf(1, 10_000)
	b[5000]++
	x, y := hashesOf(a), hashesOf(b)
	if len(x) != len(y) {
		t.Fatalf("%d and %d blocks", len(x), len(y))
	}
	for i := range x {
		if shared := blockEnd(i) <= 5000; (x[i] == y[i]) != shared {
			t.Errorf("block %d, which ends at %d, is shared: %v", i, blockEnd(i), !shared)
		}
	}
	if z := hashesOf(a[:5000]); !slices.Equal(z, x[:len(z)]) {
		t.Error("a prompt's beginning has other blocks than the prompt")
	}
	var seeded Blocks
	seeded.Begin("adapter")
	_, _ = seeded.Write(a)
	if seeded.Hashes()[0] == x[0] {
		t.Error("another seed gave the same blocks")
	}
}

func FuzzBlocksComeAlikeHoweverTheyAreWritten(f *testing.F) {
	f.Add([]byte("hello"), uint16(3), uint16(200))
	f.Add(bytes.Repeat([]byte{7}, 3000), uint16(127), uint16(1025))
	f.Fuzz(func(t *testing.T, prompt []byte, first, step uint16) {
		want := hashesOf(prompt)
		var b Blocks
		b.Begin("")
		rest, n := prompt, int(first)
		for len(rest) > 0 {
			n = min(max(n, 1), len(rest))
			_, _ = b.Write(rest[:n])
			rest, n = rest[n:], int(step)
		}
		if !slices.Equal(b.Hashes(), want) || b.Size() != len(prompt) {
			t.Errorf("%d blocks of %d bytes, want %d of %d", len(b.Hashes()), b.Size(), len(want), len(prompt))
		}
	})
}

// matched is what an index tells of some blocks.
func matched(x *Index, hashes []uint64, now time.Time) map[int]int {
	out := map[int]int{}
	x.Match(hashes, now, func(slot, blocks int) {
		if slot != Rest {
			out[slot] = blocks
			return
		}
		for slot := range x.next {
			if _, told := out[slot]; !told && x.live[slot/64]&(1<<(slot%64)) != 0 {
				out[slot] = blocks
			}
		}
	})
	return out
}

func unmoved(t *testing.T) func(from, to int) {
	return func(from, to int) { t.Errorf("slot %d became %d", from, to) }
}

func TestTheIndexKnowsWhoGotWhat(t *testing.T) {
	x := NewIndex(1<<20, time.Minute)
	a, b := x.Add(unmoved(t)), x.Add(unmoved(t))
	short, long := hashesOf(promptOf(1, 1000)), hashesOf(promptOf(1, 4000))
	x.Put(long, a, noon)
	x.Put(short, b, noon)
	if got := matched(x, long, noon); got[a] != len(long) || got[b] != len(short) {
		t.Errorf("%v, want %d and %d", got, len(long), len(short))
	}
	if got := matched(x, hashesOf(promptOf(2, 4000)), noon); len(got) > 0 {
		t.Errorf("of another prompt: %v", got)
	}
	x.Remove(a)
	if got := matched(x, long, noon); len(got) != 1 || got[b] != len(short) {
		t.Errorf("after one was removed: %v", got)
	}
}

func TestTheIndexForgetsWhatIsOld(t *testing.T) {
	x := NewIndex(1<<20, time.Minute)
	a, b := x.Add(unmoved(t)), x.Add(unmoved(t))
	p := hashesOf(promptOf(1, 1000))
	start := noon.Truncate(time.Minute)
	x.Put(p, a, start)
	if got := matched(x, p, start.Add(119*time.Second)); got[a] == 0 {
		t.Error("forgotten within two ages")
	}
	x.Put(p, b, start.Add(61*time.Second))
	got := matched(x, p, start.Add(119*time.Second))
	if got[a] == 0 || got[b] == 0 {
		t.Errorf("%v, want both", got)
	}
	if got := matched(x, p, start.Add(121*time.Second)); got[a] != 0 || got[b] == 0 {
		t.Errorf("%v, want only who had it lately", got)
	}
	if got := matched(x, p, start.Add(181*time.Second)); len(got) != 0 {
		t.Errorf("%v, want nobody", got)
	}
}

// Whatever comes, the index stays within its bytes, and knows the prompt that came last, but for
// what of it fell into one bucket.
func TestTheIndexNeverExceedsItsBytes(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	for _, limit := range []int{1 << 14, 100_000, 1 << 18} {
		x := NewIndex(limit, time.Minute)
		slots := map[int]bool{}
		add := func() {
			moved := map[int]bool{}
			renumbered := false
			slot := x.Add(func(_, to int) { moved[to], renumbered = true, true })
			if renumbered {
				if len(moved) != len(slots) {
					t.Fatalf("%d slots of %d are there after they were given out again", len(moved), len(slots))
				}
				slots = moved
			}
			if slots[slot] {
				t.Fatalf("slot %d was given out twice", slot)
			}
			slots[slot] = true
		}
		now := noon
		var hashes [60]uint64
		for i := range 20_000 {
			switch {
			case len(slots) == 0 || i%97 == 0 && len(slots) < 90:
				add()
			case i%101 == 0:
				for s := range slots {
					x.Remove(s)
					delete(slots, s)
					break
				}
			}
			for j := range hashes {
				hashes[j] = max(r.Uint64(), 1)
			}
			n := 1 + r.IntN(len(hashes))
			for s := range slots {
				x.Put(hashes[:n], s, now)
				if got := matched(x, hashes[:n], now); limit > 1<<16 && got[s] < n*3/4 {
					t.Fatalf("%d of %d blocks are known that came a moment ago", got[s], n)
				}
				break
			}
			if x.Bytes() > limit {
				t.Fatalf("%d bytes where %d are allowed", x.Bytes(), limit)
			}
			now = now.Add(time.Duration(r.IntN(3)) * time.Second)
		}
		if x.Bytes() < limit/4 {
			t.Errorf("%d bytes of %d are used by more than there is room for", x.Bytes(), limit)
		}
	}
}

func TestSlotsThatWereGivenOutAgainKeepWhatIsTheirs(t *testing.T) {
	g := NewGroup(parsed(t, "prefix"))
	all := func(from int) func(int) Name { return func(i int) Name { return name(from + i) } }
	of := g.Keep(60, all(0))
	ask := Ask{Blocks: hashesOf(promptOf(1, 2000)), Size: 2000}
	c := g.Take(of[59], &ask, noon)
	c.Release(Answered, 0, 0, noon)
	for from := 1; from < 59; from++ {
		of = g.Keep(60, all(from))
	}
	// Two are left of the first 60, the one with the prompt among them.
	for range 50 {
		i, c := g.Pick(of, &ask, -1, rand.Uint64(), noon)
		c.Release(Answered, 0, 0, noon)
		if got := g.names[i]; got != name(59) {
			t.Fatalf("%s was chosen, and %s has the prompt", got, name(59))
		}
	}
}
