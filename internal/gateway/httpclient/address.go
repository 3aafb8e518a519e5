package httpclient

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
)

// guard refuses addresses that no gateway has. It is called with what is really dialled, after name resolution, so that a name
// cannot be checked with one address and used with another.
func (c Config) guard(_ context.Context, _, address string, _ syscall.RawConn) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return &blockedError{address, "no address"}
	}
	if why := c.refused(ap.Addr()); why != "" {
		return &blockedError{ap.Addr().String(), why}
	}
	return nil
}

// blockedError is an address that is not dialled.
type blockedError struct{ address, why string }

func (e *blockedError) Error() string { return fmt.Sprintf("%s is %s", e.address, e.why) }

// Ranges of the IANA special-purpose registries that Go's predicates do not know.
var (
	cgnat    = netip.MustParsePrefix("100.64.0.0/10")
	nat64    = netip.MustParsePrefix("64:ff9b::/96")
	nat64own = netip.MustParsePrefix("64:ff9b:1::/48")
	testing4 = netip.MustParsePrefix("198.18.0.0/15")

	never = []netip.Prefix{
		netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("192.0.0.0/24"), netip.MustParsePrefix("192.0.2.0/24"),
		netip.MustParsePrefix("192.88.99.0/24"), netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("203.0.113.0/24"),
		netip.MustParsePrefix("240.0.0.0/4"), netip.MustParsePrefix("::/96"), netip.MustParsePrefix("::ffff:0:0:0/96"), netip.MustParsePrefix("100::/64"),
		netip.MustParsePrefix("2001::/23"), netip.MustParsePrefix("2001:db8::/32"), netip.MustParsePrefix("2002::/16"),
		netip.MustParsePrefix("3fff::/20"), netip.MustParsePrefix("5f00::/16"), netip.MustParsePrefix("fec0::/10"),
	}
)

// refused says why an address is not dialled; empty when it is. Link-local addresses stay refused whatever is allowed: the metadata
// service of a cloud is one, and it hands out credentials.
func (c Config) refused(a netip.Addr) string {
	a = a.Unmap().WithZone("")
	switch {
	case a.IsLoopback():
		if !c.AllowLoopback {
			return "this machine (allow_loopback is false)"
		}
		return ""
	case a.IsUnspecified():
		return "unspecified"
	case a.IsMulticast():
		return "multicast"
	case a.IsLinkLocalUnicast():
		return "link-local"
	case nat64.Contains(a):
		if why := c.refused(embedded(a)); why != "" {
			return "NAT64 for an address that is " + why
		}
		return c.private("NAT64")
	case nat64own.Contains(a):
		return c.private("NAT64")
	case a.IsPrivate():
		return c.private("private")
	case cgnat.Contains(a):
		return c.private("carrier-grade NAT")
	case testing4.Contains(a):
		return c.private("for tests of networks")
	}
	for _, p := range never {
		if p.Contains(a) {
			return "reserved"
		}
	}
	return ""
}

// undialled are the hosts that are written as addresses which no call would dial. Where a proxy dials, what it reaches is its own matter.
func (c Config) undialled() []error {
	if c.Proxy != "" {
		return nil
	}
	var errs []error
	for _, host := range c.Hosts {
		if h, _, err := net.SplitHostPort(host); err == nil {
			host = h
		}
		a, err := netip.ParseAddr(strings.Trim(host, "[]"))
		if err != nil {
			continue // a name; its addresses are looked at when they are dialled
		}
		why, permitted := c.refused(a), c
		if why == "" {
			continue
		}
		permitted.AllowLoopback, permitted.AllowPrivate = true, true
		switch {
		case permitted.refused(a) != "":
			errs = append(errs, fmt.Errorf("%s is never dialled: it is %s", host, why))
		case a.Unmap().IsLoopback():
			errs = append(errs, fmt.Errorf("allow_loopback: false, and %s is this machine; write true if the gateway is really here", host))
		default:
			errs = append(errs, fmt.Errorf("allow_private: false, and %s is %s; write true if the gateway is really there", host, strings.TrimSuffix(why, " (allow_private is false)")))
		}
	}
	return errs
}

func (c Config) private(what string) string {
	if c.AllowPrivate {
		return ""
	}
	return what + " (allow_private is false)"
}

// embedded is the IPv4 address in the last four bytes of a.
func embedded(a netip.Addr) netip.Addr {
	b := a.As16()
	return netip.AddrFrom4([4]byte(b[12:]))
}
