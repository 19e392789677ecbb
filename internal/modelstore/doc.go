// Package modelstore is the room of model bytes: it brings what a URI names into a
// content-addressed store on this machine's disk, hashed while it is read, and hands out
// read-only directories by digest.
//
// Layout under the store's directory:
//
//	blobs/sha256/ab/<hex>      one file's bytes, once, mode 0444
//	manifests/sha256/ab/<hex>  a tree's canonical description; its sha256 is the tree's digest
//	trees/sha256/ab/<hex>/     the tree as a directory, its files hard links to blobs
//	refs/<hex>                 what an HTTP server said of a URI, for conditional requests
//	tmp/<id>/, tmp/<id>.lock   what one process has under way, and its lock
//
// A name under blobs, manifests and trees appears by rename only, after its bytes were
// synced, so what is there is whole. What a process that died left under tmp is removed by
// the next Open that gets its lock.
package modelstore
