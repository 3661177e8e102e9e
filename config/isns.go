package config

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// ISNS names the iSNS server (RFC 4171) with which the daemon registers its targets.
type ISNS struct {
	Server string   // host:port; empty: none
	Pos    Position // of it
	Entity string   // the name of this machine there; empty: its host name
}

// isnsPort is iSNS' well-known port.
const isnsPort = 3205

func (d *decoder) isns(v value, i *ISNS) {
	if !v.given() {
		return
	}
	o := d.object(v.node, "isns")
	if o == nil {
		return
	}
	server := o.take("server")
	if !o.has("server") {
		d.errorf(o.pos, "isns names no server: add server: isns.example.com")
	}
	if server.given() {
		i.Pos = server.pos()
		set(server, &i.Server, "an address such as isns.example.com:3205", func(s string) (string, error) { return parseNode(s, isnsPort) })
	}
	set(o.take("entity"), &i.Entity, "a name", parseEntity)
	o.done()
}

func parseEntity(text string) (string, error) {
	if text == "" || len(text) > 255 {
		return "", fmt.Errorf("the entity has %d bytes: an Entity Identifier has 1 to 255 (RFC 4171 §6.2.1)", len(text))
	}
	return text, nil
}

// parseNode reads the address of another machine: host:port, or host alone, which gets the given port.
func parseNode(text string, port int) (string, error) {
	if a, p, ok := ambiguous(text); ok {
		return "", fmt.Errorf("%q may be an address, or an address and a port: write [%s]:%s if %s is the port, else [%s]", text, a, p, p, text)
	}
	if a, err := netip.ParseAddr(strings.Trim(text, "[]")); err == nil {
		return netip.AddrPortFrom(a, uint16(port)).String(), nil
	}
	host, number, err := net.SplitHostPort(text)
	if err != nil {
		host, number = text, strconv.Itoa(port)
	}
	if n, err := strconv.ParseUint(number, 10, 16); err != nil || n == 0 || !isHost(host) {
		return "", fmt.Errorf("%q is not the address of another machine: write host:port, such as 192.0.2.1:%d", text, port)
	}
	return net.JoinHostPort(host, number), nil
}

// isHost reports whether text may be the name of a machine, or is an IP address.
func isHost(text string) bool {
	if _, err := netip.ParseAddr(text); err == nil {
		return true
	}
	return text != "" && len(text) <= 253 && strings.IndexFunc(text, func(r rune) bool {
		return r != '.' && r != '-' && r != '_' && (r < '0' || r > '9') && (r|0x20 < 'a' || r|0x20 > 'z')
	}) < 0
}
