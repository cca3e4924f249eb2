// How gRPC is set: limits, liveness and sizes, from the options.
#pragma once

#include <grpcpp/server_builder.h>
#include <grpcpp/support/channel_arguments.h>

#include "transport/grpc_transport.h"

namespace unreft {

grpc::ChannelArguments GrpcChannelArguments(const GrpcTransportOptions& options);

void SetGrpcServerArguments(const GrpcTransportOptions& options, grpc::ServerBuilder& builder);

}  // namespace unreft
