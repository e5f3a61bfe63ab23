/* SPDX-License-Identifier: Apache-2.0 */
/* The page: four files embedded in the program, so that it needs no other host and no bundler. */
#include "admin/routes.h"

#include <string.h>

/* Made from src/admin/page by the build. */
extern const char semel_page_index_html[], semel_page_app_js[], semel_page_app_css[],
	semel_page_favicon_svg[];

static semel_status serve_file(struct semel_admin_request *request, const char *text,
			       const char *content_type)
{
	request->response->content_type = content_type;
	request->response->cache_control = "no-cache";
	semel_buffer_string(semel_admin_request_body(request), text);
	return SEMEL_OK;
}

semel_status semel_serve_page(struct semel_admin_request *request, semel_error *error)
{
	(void)error;
	return serve_file(request, semel_page_index_html, "text/html; charset=utf-8");
}

semel_status semel_serve_page_script(struct semel_admin_request *request, semel_error *error)
{
	(void)error;
	return serve_file(request, semel_page_app_js, "text/javascript; charset=utf-8");
}

semel_status semel_serve_page_style(struct semel_admin_request *request, semel_error *error)
{
	(void)error;
	return serve_file(request, semel_page_app_css, "text/css; charset=utf-8");
}

semel_status semel_serve_page_icon(struct semel_admin_request *request, semel_error *error)
{
	(void)error;
	return serve_file(request, semel_page_favicon_svg, "image/svg+xml");
}
