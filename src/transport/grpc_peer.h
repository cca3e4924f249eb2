// Who calls, as far as what each peer may hold goes: the host, and with TLS whom the certificate
// names. The connections of one peer are not told apart, since it may make as many as it likes.
#pragma once

#include <grpcpp/server_context.h>

#include <string>

namespace unreft {

std::string GrpcPeer(const grpc::CallbackServerContext& context);

}  // namespace unreft
