// How gRPC is set: limits, liveness and sizes, from the options.
#pragma once

#include <grpcpp/server_builder.h>
#include <grpcpp/support/channel_arguments.h>

#include <string>

#include "base/wire_address.h"
#include "transport/grpc_transport.h"

namespace unreft {

grpc::ChannelArguments GrpcChannelArguments(const GrpcTransportOptions& options,
                                            const std::string& address);

// Of an address of this node's (`what` is its option) or of a peer's.
WireUse WireUseOf(std::string what, const GrpcTransportOptions& options);

void SetGrpcServerArguments(const GrpcTransportOptions& options, grpc::ServerBuilder& builder);

}  // namespace unreft
