package certificate_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"testing"
	"time"

	"stationmaster.dev/stationmaster/internal/admission/certificate"
)

var (
	start = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	hosts = []string{"webhook.system.svc", "webhook.system.svc.cluster.local"}
)

const day = 24 * time.Hour

// renew renews a set and checks that a caller who trusts its authorities takes its leaf then.
func renew(t *testing.T, have certificate.Set, now time.Time, wantChanged bool) certificate.Set {
	t.Helper()
	next, changed, err := certificate.Renew(have, hosts, now)
	if err != nil {
		t.Fatal(err)
	}
	if changed != wantChanged {
		t.Errorf("after %v: changed is %v, want %v", now.Sub(start), changed, wantChanged)
	}
	accepts(t, next.Authorities, next, now)
	return next
}

// accepts checks that a caller who trusts these authorities takes a set's leaf.
func accepts(t *testing.T, authorities []byte, s certificate.Set, now time.Time) {
	t.Helper()
	pair, err := tls.X509KeyPair(s.Leaf, s.LeafKey)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(authorities) {
		t.Fatal("no authorities")
	}
	for _, h := range hosts {
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{DNSName: h, Roots: roots, CurrentTime: now}); err != nil {
			t.Errorf("after %v %s isn't believed: %v", now.Sub(start), h, err)
		}
	}
}

func TestASetIsMadeOnceAndRenewedBeforeItsEnd(t *testing.T) {
	first := renew(t, certificate.Set{}, start, true)
	renew(t, first, start.Add(59*day), false)
	second := renew(t, first, start.Add(61*day), true)
	if !bytes.Equal(first.Authorities, second.Authorities) || !bytes.Equal(first.AuthorityKey, second.AuthorityKey) {
		t.Error("a new leaf came with another authority")
	}
	if bytes.Equal(first.LeafKey, second.LeafKey) {
		t.Error("a new leaf has the old key")
	}
}

// A new authority is known to callers for a day before it signs, so that none ever meets a leaf
// that it can't check.
func TestANewAuthorityIsTrustedBeforeItSigns(t *testing.T) {
	s := renew(t, certificate.Set{}, start, true)
	old := s.Authorities
	var now time.Time
	for now = start; bytes.Equal(s.Authorities, old); now = now.Add(day / 2) {
		var err error
		if s, _, err = certificate.Renew(s, hosts, now); err != nil {
			t.Fatal(err)
		}
		accepts(t, old, s, now)
	}
	if left := start.Add(5 * 365 * day).Sub(now); left < 170*day || left > 185*day {
		t.Errorf("a new authority came %v before the old one's end", left)
	}
	if !bytes.HasSuffix(s.Authorities, old) {
		t.Error("the old authority isn't trusted any more")
	}
	accepts(t, old, s, now)
	both := s.Authorities
	s = renew(t, s, now.Add(day), true)
	if !bytes.Equal(s.Authorities, both) {
		t.Error("the authorities changed again")
	}
	newest := both[:len(both)-len(old)]
	accepts(t, newest, s, now.Add(day))
	// Once it has ended the old one goes.
	var err error
	if s, _, err = certificate.Renew(s, hosts, now.Add(200*day)); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(s.Authorities, newest) {
		t.Error("an authority that has ended is still trusted")
	}
}

func TestWhatIsDamagedIsMadeAnew(t *testing.T) {
	whole := renew(t, certificate.Set{}, start, true)
	other := renew(t, certificate.Set{}, start, true)
	for name, damage := range map[string]func(*certificate.Set){
		"no leaf":                          func(s *certificate.Set) { s.Leaf = nil },
		"a key that isn't the leaf's":      func(s *certificate.Set) { s.LeafKey = other.LeafKey },
		"another authority's leaf":         func(s *certificate.Set) { s.Leaf, s.LeafKey = other.Leaf, other.LeafKey },
		"no authority":                     func(s *certificate.Set) { s.Authorities = nil },
		"a key that isn't the authority's": func(s *certificate.Set) { s.AuthorityKey = other.AuthorityKey },
		"text that is no PEM":              func(s *certificate.Set) { s.AuthorityKey, s.Authorities = []byte("x"), []byte("y") },
	} {
		t.Run(name, func(t *testing.T) {
			s := whole
			damage(&s)
			renew(t, renew(t, s, start.Add(time.Hour), true), start.Add(2*time.Hour), false)
		})
	}
	t.Run("other hosts", func(t *testing.T) {
		s, changed, err := certificate.Renew(whole, []string{"elsewhere.svc"}, start)
		if err != nil || !changed || bytes.Equal(s.Leaf, whole.Leaf) {
			t.Errorf("the leaf stays (%v)", err)
		}
	})
}
