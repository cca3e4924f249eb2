// Kv's Txns in etcd's messages, as a client sends them. Functions without state.
#pragma once

#include <etcd/rpc.pb.h>

#include "meta/kv.h"

namespace unreft::meta {

etcdserverpb::TxnRequest ToWire(Txn&& txn);
TxnResult FromWire(etcdserverpb::TxnResponse&& wire);

}  // namespace unreft::meta
