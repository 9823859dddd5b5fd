// heldout's viewer, made of d3193527c1e82573ce266f931c3c2d747e2b730e698fe3641f540deca642a725; with preact, htm, marked and diff, whose licences are in vendor/
(()=>{var ee=class extends Error{constructor(t,n){super(t.error),this.hint=t.hint||"",this.at=t.at,this.kind=t.kind||"",this.kinds=t.kinds||[],this.answer=t.answer,this.status=n}};var bt=/(-)?(?:("(?:[^"\\]|\\.)*"|[^\s:=<>!"]+)(:|<=|>=|!=|=|<|>))?("(?:[^"\\]|\\.)*"|[^\s"]+)/suy,ys=/^-?[^\s:=<>!]+(?::|<=|>=|!=|=|<|>)$/u,xs=/^[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?$/i,Kt=["passed","failed","errored","truncated"],ks=["id","error","ground_truth","extracted"],Ss=["text","answer"],Cs={":":(e,t)=>e===t,"=":(e,t)=>e===t,"!=":(e,t)=>e!==t,"<":(e,t)=>e<t,"<=":(e,t)=>e<=t,">":(e,t)=>e>t,">=":(e,t)=>e>=t},ae=(e,t)=>new ee({error:e,kind:"filter",at:t},400);function He(e){let t=[],n=0,s=0,r=null;for(;n<e.length;){if(/\s/.test(e[n])){n++;continue}bt.lastIndex=n;let o=bt.exec(e),a=bt.lastIndex;if(!o||a<e.length&&!/\s/.test(e[a]))throw ae(`cannot read '${e.slice(n,n+40)}': close the quotes`,n);if(o[0]==="OR"){if(r!==null||!t.length)throw ae("OR stands between two terms",n);r=n,s++,n=a;continue}if(ys.test(o[0]))throw ae(`${o[0]} has no value`,n);let[,c,i="text",u=":",p]=o,m={field:Gt(i),op:u,value:Gt(p),negated:c==="-"};t.push({...m,start:n,group:s}),r=null,n=a}if(r!==null)throw ae("OR stands between two terms",r);return t}function Gt(e){if(!e.startsWith('"'))return e;try{return String(JSON.parse(e))}catch{return e.slice(1,-1).replace(/\\(.)/gsu,"$1")}}function Jt(e,t){return e.length?e.every(n=>t.includes(n.field))?"metadata":"outcome":"all"}function Ue(e,t,n){let s=(d,$)=>{let h=Object.hasOwn(e.fields,d)?e.fields[d]:void 0;if(h===void 0)throw ae(`the exported file has no column '${d}'`,$);return e.columns[h]},r=[];for(let d of t){if(Ss.includes(d.field)&&(d.field==="text"||!Object.hasOwn(e.fields,d.field)))throw ae("an exported file has no search of conversations; `heldout view` has",d.start);let $=Es(d,s(d.field,d.start));r[d.group]??=[],r[d.group].push(d.negated?h=>!$(h):$)}let o=d=>!r.length||r.some($=>$.every(h=>h(d))),a=[];for(let d=0;d<e.of;d++)o(d)&&a.push(d);if(!n)return a;let{numbers:c,codes:i}=s(n.replace(/^-/,""),0),u=c?d=>c[d]:d=>i[d]<0?null:i[d],p=n.startsWith("-")?-1:1,m=(d,$)=>d===$?0:d===null?1:$===null?-1:d<$?-p:p;return a.sort((d,$)=>m(u(d),u($)))}function Es(e,{numbers:t,codes:n,values:s}){let{field:r,op:o,value:a,start:c}=e;if(t){let m=Ms(e);return d=>t[d]!==null&&m(t[d])}if(!(o===":"||o==="="||o==="!="))throw ae(`${r} has texts; compare them with : or !=`,c);let i=a.toLowerCase(),u=ks.includes(r)&&o===":",p=s.map(m=>u?m.toLowerCase().includes(i):m===a);return m=>n[m]>=0&&p[n[m]]===(o!=="!=")}function Ms(e){let{op:t,value:n}=e,s=/^(.*?)\.\.(.*)$/s.exec(n);if(!s||!(t===":"||t==="="||t==="!=")){let c=zt(e);return i=>Cs[t](i,c)}let r=c=>zt({...e,value:c}),o=s[1]||!s[2]?r(s[1]):-1/0,a=s[2]?r(s[2]):1/0;return c=>(o<=c&&c<=a)==(t!=="!=")}function zt({field:e,value:t,start:n}){if(Kt.includes(e)&&(t==="yes"||t==="no"))return+(t==="yes");let s=t.trim().replace(/(?<=\d)_(?=\d)/g,""),r=/^([+-]?)inf(?:inity)?$/i.exec(s);if(r)return r[1]==="-"?-1/0:1/0;if(xs.test(s))return Number(s);let o=Kt.includes(e)?"yes or no":"a number";throw ae(`${e} is compared with ${o}, got '${t}'`,n)}var he=null,N=()=>he!==null;async function Vt(e){let t=Uint8Array.from(atob(e.textContent.trim()),s=>s.charCodeAt(0)),n=new Blob([t]).stream().pipeThrough(new DecompressionStream("gzip"));he=JSON.parse(await new Response(n).text())}function Yt(e,t,n){if(e==="rows")return Ls(he[`rows
name=${t.name}`],t);if(e==="pairs")return Ts(he[`pairs
a=${t.a}
b=${t.b}`],t);if(e==="position")return As(he[`rows
name=${t.name}`],t);let s=he[[e,...n.map(r=>r.join("="))].join(`
`)];if(s===void 0)throw Fe();return e==="sample"?{...s,tools:he[s.tools]||[]}:s}function Fe(){let e="`heldout view` shows all of it.";return new ee({error:"This is not in the exported file.",hint:e},404)}function Ts(e,{where:t="",sort:n="",offset:s=0,limit:r=100}){if(!e)throw Fe();let o=Ue(e,He(t),n),a=o.slice(s,s+r).map(c=>e.rows[c]);return{...e,total:o.length,rows:a}}function Ls(e,{where:t="",sort:n="",offset:s=0,limit:r=100}){if(!e)throw Fe();let o=He(t),a=Ue(e,o,n),c=u=>{let{numbers:p}=e.columns[u];return a.reduce((m,d)=>m+p[d],0)},i=Jt(o,e.inputs);return{...e,total:a.length,picked:i,mean:i==="all"?e.mean:null,counts:{failed:c("failed"),errored:c("errored"),truncated:c("truncated")},rows:a.slice(s,s+r).map(u=>e.rows[u])}}function As(e,{where:t="",sort:n="",id:s,repeat:r=0}){if(!e)throw Fe();let o=Ue(e,He(t),n).map(i=>e.rows[i]),a=o.findIndex(i=>i.id===s&&i.repeat===Number(r)),c=i=>o[i]&&{at:i,id:o[i].id,repeat:o[i].repeat};return{at:a<0?null:a,total:o.length,previous:c(a<0?-1:a-1),next:c(a+1)}}var qe="heldout-token",Ps=4e4,z={works(){try{return localStorage!==null}catch{return!1}},get(e){try{return localStorage.getItem(e)}catch{return null}},set(e,t){try{localStorage.setItem(e,t)}catch{}}};async function Qt(){let e=/^#(token|code)=([\w-]+)(.*)$/.exec(location.hash);if(!e)return;let t=e[3]||"/runs";if(history.replaceState(history.state,"",`${location.pathname}${location.search}#${t}`),e[1]==="token"){z.set(qe,e[2]);return}let n=await fetch("api/token",{headers:{Authorization:`Code ${e[2]}`}});n.ok&&z.set(qe,(await n.json()).token)}function We(e){let t=n=>n.key===qe&&e();return addEventListener("storage",t),()=>removeEventListener("storage",t)}function Xt(e){let t=s=>s!=null&&s!==""&&s!==0,n=Object.entries(e).filter(([,s])=>t(s));return n.sort(([s],[r])=>s<r?-1:s>r?1:0),n.flatMap(([s,r])=>[r].flat().map(o=>[s,String(o)]))}function Ae(e,t={}){let n=new URLSearchParams(Xt(t)).toString();return n?`${e}?${n}`:e}function Ke(){let e=z.get(qe);return e?{Authorization:`Bearer ${e}`}:{}}async function ne(e,t={},n=void 0){return N()?Yt(e,t,Xt(t)):Zt(fetch(`api/${Ae(e,t)}`,{headers:Ke(),signal:n}))}async function Zt(e){let t;try{t=await e}catch(s){if(s.name==="AbortError")throw s;let r="Is `heldout view` still running?";throw new ee({error:"The server does not answer.",hint:r,kind:"gone"},0)}if(t.ok)return t.json();let n=await t.json().catch(()=>({error:`HTTP ${t.status}`}));throw new ee(n,t.status)}async function en(e,t){let n=await fetch(`api/${Ae(e,t)}`,{headers:Ke()});if(n.ok)return n.blob();throw new ee(await n.json(),n.status)}async function tn(e,t){let n={method:"POST",body:JSON.stringify(t),keepalive:!0},s={"Content-Type":"application/json"};return Zt(fetch(`api/${e}`,{...n,headers:{...Ke(),...s}}))}function Ge(e,t,n,s){if(N())return()=>{};let r=new AbortController,o=1e3;async function a(u){let p=new AbortController,m,d=()=>{clearTimeout(m),m=setTimeout(()=>p.abort(new Error("silent")),Ps)};d();let $=await fetch(`api/${Ae("events",{name:e})}`,{headers:{...Ke(),...t?{"Last-Event-ID":t}:{}},signal:AbortSignal.any([u,p.signal])});if(!$.ok||!$.body)throw new Error(String($.status));s("live"),o=1e3;let h=$.body.pipeThrough(new TextDecoderStream).getReader(),v="";for(;;){let{value:f,done:w}=await h.read();if(d(),w)return;v+=f;let y=v.split(`

`);v=y.pop();for(let S of y){let b=M=>(new RegExp(`^${M}: ?(.*)$`,"m").exec(S)||[])[1];t=b("id")??t;let _=b("data");_!==void 0&&n(b("event")||"message",JSON.parse(_))}}}async function c(u){for(;!u.aborted;){if(await a(u).catch(()=>{}),u.aborted)return;s("lost"),await new Promise(p=>setTimeout(p,o)),o=Math.min(o*2,15e3)}}function i(){r.abort(),r=new AbortController,document.hidden?s("paused"):c(r.signal)}return document.addEventListener("visibilitychange",i),document.hidden||c(r.signal),()=>{r.abort(),document.removeEventListener("visibilitychange",i)}}var Ze,T,hn,Oe,gn,nn,Ns,Ye={},bn=[],Ds=/acit|ex(?:s|g|n|p|$)|rph|grid|ows|mnc|ntw|ine[ch]|zoo|^ord|itera/i;function ie(e,t){for(var n in t)e[n]=t[n];return e}function vn(e){var t=e.parentNode;t&&t.removeChild(e)}function wn(e,t,n){var s,r,o,a={};for(o in t)o=="key"?s=t[o]:o=="ref"?r=t[o]:a[o]=t[o];if(arguments.length>2&&(a.children=arguments.length>3?Ze.call(arguments,2):n),typeof e=="function"&&e.defaultProps!=null)for(o in e.defaultProps)a[o]===void 0&&(a[o]=e.defaultProps[o]);return Je(e,a,s,r,null)}function Je(e,t,n,s,r){var o={type:e,props:t,key:n,ref:s,__k:null,__:null,__b:0,__e:null,__d:void 0,__c:null,__h:null,constructor:void 0,__v:r??++hn};return T.vnode!=null&&T.vnode(o),o}function et(e){return e.children}function te(e,t){this.props=e,this.context=t}function ve(e,t){if(t==null)return e.__?ve(e.__,e.__.__k.indexOf(e)+1):null;for(var n;t<e.__k.length;t++)if((n=e.__k[t])!=null&&n.__e!=null)return n.__e;return typeof e.type=="function"?ve(e):null}function _n(e){var t,n;if((e=e.__)!=null&&e.__c!=null){for(e.__e=e.__c.base=null,t=0;t<e.__k.length;t++)if((n=e.__k[t])!=null&&n.__e!=null){e.__e=e.__c.base=n.__e;break}return _n(e)}}function sn(e){(!e.__d&&(e.__d=!0)&&Oe.push(e)&&!Qe.__r++||nn!==T.debounceRendering)&&((nn=T.debounceRendering)||gn)(Qe)}function Qe(){for(var e;Qe.__r=Oe.length;)e=Oe.sort(function(t,n){return t.__v.__b-n.__v.__b}),Oe=[],e.some(function(t){var n,s,r,o,a,c;t.__d&&(a=(o=(n=t).__v).__e,(c=n.__P)&&(s=[],(r=ie({},o)).__v=o.__v+1,_t(c,o,r,n.__n,c.ownerSVGElement!==void 0,o.__h!=null?[a]:null,s,a??ve(o),o.__h),Sn(s,o),o.__e!=a&&_n(o)))})}function yn(e,t,n,s,r,o,a,c,i,u){var p,m,d,$,h,v,f,w=s&&s.__k||bn,y=w.length;for(n.__k=[],p=0;p<t.length;p++)if(($=n.__k[p]=($=t[p])==null||typeof $=="boolean"?null:typeof $=="string"||typeof $=="number"||typeof $=="bigint"?Je(null,$,null,null,$):Array.isArray($)?Je(et,{children:$},null,null,null):$.__b>0?Je($.type,$.props,$.key,null,$.__v):$)!=null){if($.__=n,$.__b=n.__b+1,(d=w[p])===null||d&&$.key==d.key&&$.type===d.type)w[p]=void 0;else for(m=0;m<y;m++){if((d=w[m])&&$.key==d.key&&$.type===d.type){w[m]=void 0;break}d=null}_t(e,$,d=d||Ye,r,o,a,c,i,u),h=$.__e,(m=$.ref)&&d.ref!=m&&(f||(f=[]),d.ref&&f.push(d.ref,null,$),f.push(m,$.__c||h,$)),h!=null?(v==null&&(v=h),typeof $.type=="function"&&$.__k!=null&&$.__k===d.__k?$.__d=i=xn($,i,e):i=kn(e,$,d,w,h,i),u||n.type!=="option"?typeof n.type=="function"&&(n.__d=i):e.value=""):i&&d.__e==i&&i.parentNode!=e&&(i=ve(d))}for(n.__e=v,p=y;p--;)w[p]!=null&&(typeof n.type=="function"&&w[p].__e!=null&&w[p].__e==n.__d&&(n.__d=ve(s,p+1)),En(w[p],w[p]));if(f)for(p=0;p<f.length;p++)Cn(f[p],f[++p],f[++p])}function xn(e,t,n){var s,r;for(s=0;s<e.__k.length;s++)(r=e.__k[s])&&(r.__=e,t=typeof r.type=="function"?xn(r,t,n):kn(n,r,r,e.__k,r.__e,t));return t}function kn(e,t,n,s,r,o){var a,c,i;if(t.__d!==void 0)a=t.__d,t.__d=void 0;else if(n==null||r!=o||r.parentNode==null)e:if(o==null||o.parentNode!==e)e.appendChild(r),a=null;else{for(c=o,i=0;(c=c.nextSibling)&&i<s.length;i+=2)if(c==r)break e;e.insertBefore(r,o),a=o}return a!==void 0?a:r.nextSibling}function on(e,t,n){t[0]==="-"?e.setProperty(t,n):e[t]=n==null?"":typeof n!="number"||Ds.test(t)?n:n+"px"}function ze(e,t,n,s,r){var o;e:if(t==="style")if(typeof n=="string")e.style.cssText=n;else{if(typeof s=="string"&&(e.style.cssText=s=""),s)for(t in s)n&&t in n||on(e.style,t,"");if(n)for(t in n)s&&n[t]===s[t]||on(e.style,t,n[t])}else if(t[0]==="o"&&t[1]==="n")o=t!==(t=t.replace(/Capture$/,"")),t=t.toLowerCase()in e?t.toLowerCase().slice(2):t.slice(2),e.l||(e.l={}),e.l[t+o]=n,n?s||e.addEventListener(t,o?ln:rn,o):e.removeEventListener(t,o?ln:rn,o);else if(t!=="dangerouslySetInnerHTML"){if(r)t=t.replace(/xlink[H:h]/,"h").replace(/sName$/,"s");else if(t!=="href"&&t!=="list"&&t!=="form"&&t!=="tabIndex"&&t!=="download"&&t in e)try{e[t]=n??"";break e}catch{}typeof n=="function"||(n!=null&&(n!==!1||t[0]==="a"&&t[1]==="r")?e.setAttribute(t,n):e.removeAttribute(t))}}function rn(e){this.l[e.type+!1](T.event?T.event(e):e)}function ln(e){this.l[e.type+!0](T.event?T.event(e):e)}function _t(e,t,n,s,r,o,a,c,i){var u,p,m,d,$,h,v,f,w,y,S,b=t.type;if(t.constructor!==void 0)return null;n.__h!=null&&(i=n.__h,c=t.__e=n.__e,t.__h=null,o=[c]),(u=T.__b)&&u(t);try{e:if(typeof b=="function"){if(f=t.props,w=(u=b.contextType)&&s[u.__c],y=u?w?w.props.value:u.__:s,n.__c?v=(p=t.__c=n.__c).__=p.__E:("prototype"in b&&b.prototype.render?t.__c=p=new b(f,y):(t.__c=p=new te(f,y),p.constructor=b,p.render=js),w&&w.sub(p),p.props=f,p.state||(p.state={}),p.context=y,p.__n=s,m=p.__d=!0,p.__h=[]),p.__s==null&&(p.__s=p.state),b.getDerivedStateFromProps!=null&&(p.__s==p.state&&(p.__s=ie({},p.__s)),ie(p.__s,b.getDerivedStateFromProps(f,p.__s))),d=p.props,$=p.state,m)b.getDerivedStateFromProps==null&&p.componentWillMount!=null&&p.componentWillMount(),p.componentDidMount!=null&&p.__h.push(p.componentDidMount);else{if(b.getDerivedStateFromProps==null&&f!==d&&p.componentWillReceiveProps!=null&&p.componentWillReceiveProps(f,y),!p.__e&&p.shouldComponentUpdate!=null&&p.shouldComponentUpdate(f,p.__s,y)===!1||t.__v===n.__v){p.props=f,p.state=p.__s,t.__v!==n.__v&&(p.__d=!1),p.__v=t,t.__e=n.__e,t.__k=n.__k,t.__k.forEach(function(_){_&&(_.__=t)}),p.__h.length&&a.push(p);break e}p.componentWillUpdate!=null&&p.componentWillUpdate(f,p.__s,y),p.componentDidUpdate!=null&&p.__h.push(function(){p.componentDidUpdate(d,$,h)})}p.context=y,p.props=f,p.state=p.__s,(u=T.__r)&&u(t),p.__d=!1,p.__v=t,p.__P=e,u=p.render(p.props,p.state,p.context),p.state=p.__s,p.getChildContext!=null&&(s=ie(ie({},s),p.getChildContext())),m||p.getSnapshotBeforeUpdate==null||(h=p.getSnapshotBeforeUpdate(d,$)),S=u!=null&&u.type===et&&u.key==null?u.props.children:u,yn(e,Array.isArray(S)?S:[S],t,n,s,r,o,a,c,i),p.base=t.__e,t.__h=null,p.__h.length&&a.push(p),v&&(p.__E=p.__=null),p.__e=!1}else o==null&&t.__v===n.__v?(t.__k=n.__k,t.__e=n.__e):t.__e=Rs(n.__e,t,n,s,r,o,a,i);(u=T.diffed)&&u(t)}catch(_){t.__v=null,(i||o!=null)&&(t.__e=c,t.__h=!!i,o[o.indexOf(c)]=null),T.__e(_,t,n)}}function Sn(e,t){T.__c&&T.__c(t,e),e.some(function(n){try{e=n.__h,n.__h=[],e.some(function(s){s.call(n)})}catch(s){T.__e(s,n.__v)}})}function Rs(e,t,n,s,r,o,a,c){var i,u,p,m=n.props,d=t.props,$=t.type,h=0;if($==="svg"&&(r=!0),o!=null){for(;h<o.length;h++)if((i=o[h])&&(i===e||($?i.localName==$:i.nodeType==3))){e=i,o[h]=null;break}}if(e==null){if($===null)return document.createTextNode(d);e=r?document.createElementNS("http://www.w3.org/2000/svg",$):document.createElement($,d.is&&d),o=null,c=!1}if($===null)m===d||c&&e.data===d||(e.data=d);else{if(o=o&&Ze.call(e.childNodes),u=(m=n.props||Ye).dangerouslySetInnerHTML,p=d.dangerouslySetInnerHTML,!c){if(o!=null)for(m={},h=0;h<e.attributes.length;h++)m[e.attributes[h].name]=e.attributes[h].value;(p||u)&&(p&&(u&&p.__html==u.__html||p.__html===e.innerHTML)||(e.innerHTML=p&&p.__html||""))}if((function(v,f,w,y,S){var b;for(b in w)b==="children"||b==="key"||b in f||ze(v,b,null,w[b],y);for(b in f)S&&typeof f[b]!="function"||b==="children"||b==="key"||b==="value"||b==="checked"||w[b]===f[b]||ze(v,b,f[b],w[b],y)})(e,d,m,r,c),p)t.__k=[];else if(h=t.props.children,yn(e,Array.isArray(h)?h:[h],t,n,s,r&&$!=="foreignObject",o,a,o?o[0]:n.__k&&ve(n,0),c),o!=null)for(h=o.length;h--;)o[h]!=null&&vn(o[h]);c||("value"in d&&(h=d.value)!==void 0&&(h!==e.value||$==="progress"&&!h)&&ze(e,"value",h,m.value,!1),"checked"in d&&(h=d.checked)!==void 0&&h!==e.checked&&ze(e,"checked",h,m.checked,!1))}return e}function Cn(e,t,n){try{typeof e=="function"?e(t):e.current=t}catch(s){T.__e(s,n)}}function En(e,t,n){var s,r;if(T.unmount&&T.unmount(e),(s=e.ref)&&(s.current&&s.current!==e.__e||Cn(s,null,t)),(s=e.__c)!=null){if(s.componentWillUnmount)try{s.componentWillUnmount()}catch(o){T.__e(o,t)}s.base=s.__P=null}if(s=e.__k)for(r=0;r<s.length;r++)s[r]&&En(s[r],t,typeof e.type!="function");n||e.__e==null||vn(e.__e),e.__e=e.__d=void 0}function js(e,t,n){return this.constructor(e,n)}function Mn(e,t,n){var s,r,o;T.__&&T.__(e,t),r=(s=typeof n=="function")?null:n&&n.__k||t.__k,o=[],_t(t,e=(!s&&n||t).__k=wn(et,null,[e]),r||Ye,Ye,t.ownerSVGElement!==void 0,!s&&n?[n]:r?null:t.firstChild?Ze.call(t.childNodes):null,o,!s&&n?n:r?r.__e:t.firstChild,s),Sn(o,e)}Ze=bn.slice,T={__e:function(e,t){for(var n,s,r;t=t.__;)if((n=t.__c)&&!n.__)try{if((s=n.constructor)&&s.getDerivedStateFromError!=null&&(n.setState(s.getDerivedStateFromError(e)),r=n.__d),n.componentDidCatch!=null&&(n.componentDidCatch(e),r=n.__d),r)return n.__E=n}catch(o){e=o}throw e}},hn=0,te.prototype.setState=function(e,t){var n;n=this.__s!=null&&this.__s!==this.state?this.__s:this.__s=ie({},this.state),typeof e=="function"&&(e=e(ie({},n),this.props)),e&&ie(n,e),e!=null&&this.__v&&(t&&this.__h.push(t),sn(this))},te.prototype.forceUpdate=function(e){this.__v&&(this.__e=!0,e&&this.__h.push(e),sn(this))},te.prototype.render=et,Oe=[],gn=typeof Promise=="function"?Promise.prototype.then.bind(Promise.resolve()):setTimeout,Qe.__r=0,Ns=0;var Pe,J,an,Xe=0,vt=[],cn=T.__b,un=T.__r,pn=T.diffed,dn=T.__c,$n=T.unmount;function tt(e,t){T.__h&&T.__h(J,e,Xe||t),Xe=0;var n=J.__H||(J.__H={__:[],__h:[]});return e>=n.__.length&&n.__.push({}),n.__[e]}function j(e){return Xe=1,ce(Ln,e)}function ce(e,t,n){var s=tt(Pe++,2);return s.t=e,s.__c||(s.__=[n?n(t):Ln(void 0,t),function(r){var o=s.t(s.__[0],r);s.__[0]!==o&&(s.__=[o,s.__[1]],s.__c.setState({}))}],s.__c=J),s.__}function B(e,t){var n=tt(Pe++,3);!T.__s&&yt(n.__H,t)&&(n.__=e,n.__H=t,J.__H.__h.push(n))}function Tn(e,t){var n=tt(Pe++,4);!T.__s&&yt(n.__H,t)&&(n.__=e,n.__H=t,J.__h.push(n))}function Y(e){return Xe=5,Is(function(){return{current:e}},[])}function Is(e,t){var n=tt(Pe++,7);return yt(n.__H,t)&&(n.__=e(),n.__H=t,n.__h=e),n.__}function Bs(){vt.forEach(function(e){if(e.__P)try{e.__H.__h.forEach(Ve),e.__H.__h.forEach(wt),e.__H.__h=[]}catch(t){e.__H.__h=[],T.__e(t,e.__v)}}),vt=[]}T.__b=function(e){J=null,cn&&cn(e)},T.__r=function(e){un&&un(e),Pe=0;var t=(J=e.__c).__H;t&&(t.__h.forEach(Ve),t.__h.forEach(wt),t.__h=[])},T.diffed=function(e){pn&&pn(e);var t=e.__c;t&&t.__H&&t.__H.__h.length&&(vt.push(t)!==1&&an===T.requestAnimationFrame||((an=T.requestAnimationFrame)||function(n){var s,r=function(){clearTimeout(o),mn&&cancelAnimationFrame(s),setTimeout(n)},o=setTimeout(r,100);mn&&(s=requestAnimationFrame(r))})(Bs)),J=void 0},T.__c=function(e,t){t.some(function(n){try{n.__h.forEach(Ve),n.__h=n.__h.filter(function(s){return!s.__||wt(s)})}catch(s){t.some(function(r){r.__h&&(r.__h=[])}),t=[],T.__e(s,n.__v)}}),dn&&dn(e,t)},T.unmount=function(e){$n&&$n(e);var t=e.__c;if(t&&t.__H)try{t.__H.__.forEach(Ve)}catch(n){T.__e(n,t.__v)}};var mn=typeof requestAnimationFrame=="function";function Ve(e){var t=J;typeof e.__c=="function"&&e.__c(),J=t}function wt(e){var t=J;e.__c=e.__(),J=t}function yt(e,t){return!e||e.length!==t.length||t.some(function(n,s){return n!==e[s]})}function Ln(e,t){return typeof t=="function"?t(e):t}var An=function(e,t,n,s){var r;t[0]=0;for(var o=1;o<t.length;o++){var a=t[o++],c=t[o]?(t[0]|=a?1:2,n[t[o++]]):t[++o];a===3?s[0]=c:a===4?s[1]=Object.assign(s[1]||{},c):a===5?(s[1]=s[1]||{})[t[++o]]=c:a===6?s[1][t[++o]]+=c+"":a?(r=e.apply(c,An(e,c,n,["",null])),s.push(r),c[0]?t[0]|=2:(t[o-2]=0,t[o]=r)):s.push(c)}return s},fn=new Map,l=function(e){var t=fn.get(this);return t||(t=new Map,fn.set(this,t)),(t=An(this,t.get(e)||(t.set(e,t=(function(n){for(var s,r,o=1,a="",c="",i=[0],u=function(d){o===1&&(d||(a=a.replace(/^\s*\n\s*|\s*\n\s*$/g,"")))?i.push(0,d,a):o===3&&(d||a)?(i.push(3,d,a),o=2):o===2&&a==="..."&&d?i.push(4,d,0):o===2&&a&&!d?i.push(5,0,!0,a):o>=5&&((a||!d&&o===5)&&(i.push(o,0,a,r),o=6),d&&(i.push(o,d,0,r),o=6)),a=""},p=0;p<n.length;p++){p&&(o===1&&u(),u(p));for(var m=0;m<n[p].length;m++)s=n[p][m],o===1?s==="<"?(u(),i=[i],o=3):a+=s:o===4?a==="--"&&s===">"?(o=1,a=""):a=s+a[0]:c?s===c?c="":a+=s:s==='"'||s==="'"?c=s:s===">"?(u(),o=1):o&&(s==="="?(o=5,r=a,a=""):s==="/"&&(o<5||n[p][m+1]===">")?(u(),o===3&&(i=i[0]),o=i,(i=i[0]).push(2,0,o),o=0):s===" "||s==="	"||s===`
`||s==="\r"?(u(),o=2):a+=s),o===3&&a==="!--"&&(o=4,i=i[0])}return u(),i})(e)),t),arguments,[])).length>1?t:t[0]}.bind(wn);var F=e=>e!=null;function Ne(e,t,n=5){let s=t-e;if(!(s>0))return[e];let r=s/n,o=10**Math.floor(Math.log10(r)),a=[1,2,5,10].map(i=>i*o).find(i=>i>=r),c=[];for(let i=Math.ceil(e/a-1e-9);i*a<=t+a*1e-9;i++)c.push(Number((i*a).toPrecision(12)));return c}var we=(e,t=!1)=>(t&&e>0?"+":"")+String(Number(e.toPrecision(6))).replace(/^-0$/,"0"),xt=e=>Math.max(300,Math.min(e,document.documentElement.clientWidth-40)),ue=(e,t,n,s)=>r=>n+(r-e)/(t-e||1)*(s-n),kt=(e,t,n,s)=>[...e.map(r=>`${t(r)},${s(r)}`),...e.map(r=>`${t(r)},${n(r)}`).reverse()].join(" ");function On({value:e,low:t,high:n,second:s=null,from:r=0,to:o=1}){if(!F(e))return null;let a=ue(r,o,2,118),c=i=>Math.max(2,Math.min(118,a(i)));return l`<svg class="bar" viewBox="0 0 120 14" width="100" height="14" aria-hidden="true">
    <line class="axis" x1="2" x2="118" y1="7" y2="7" />
    ${F(t)?l`<line class="whisker" x1=${c(t)} x2=${c(n)} y1="7" y2="7" />`:null}
    ${F(s)?l`<circle class="dot hollow" cx=${c(s)} cy="7" r="3">
            <title>without errored items</title></circle>`:null}
    <circle class="dot" cx=${c(e)} cy="7" r="3" />
  </svg>`}function _e({rows:e,at:t=null,detectable:n=null,sign:s=!1}){let r=e.flatMap($=>[$.value,$.low,$.high,$.second]).filter(F);if(t!==null&&r.push(t),n!==null&&r.push(n,-n),!r.length)return null;let[o,a]=[Math.min(...r),Math.max(...r)],c=(a-o||.1)*.06,i=xt(720),u=i<500?96:150,p=e.length*24+34,m=ue(o-c,a+c,u,i-12),d=($,h)=>l`<line class=${$} x1=${m(h)} x2=${m(h)} y1="6" y2=${p-24} />`;return l`<svg class="forest" viewBox="0 0 ${i} ${p}" width=${i} aria-hidden="true">
    ${Ne(o-c,a+c,i<500?3:5).map($=>l`${d("rule",$)}
        <text class="tick" x=${m($)} y=${p-8} text-anchor="middle">${we($,s)}</text>`)}
    ${n===null?null:l`<rect class="undetected" x=${m(-n)} width=${m(n)-m(-n)} y="6"
            height=${p-30}>
            <title>smaller true differences are detected with less than 80% power</title></rect>`}
    ${t===null?null:d("zero",t)}
    ${e.map(($,h)=>l`<${Hs} row=${$} x=${m} y=${18+h*24} left=${u} />`)}
  </svg>`}function Hs({row:e,x:t,y:n,left:s}){let r=e.strong?"strong":"",o=s/7,a=e.label.length>o?`${e.label.slice(0,o-1)}\u2026`:e.label,{value:c,low:i,high:u,second:p}=e,m=r?5:4;return l`<text class="label ${r}" x=${s-10} y=${n+4} text-anchor="end">${a}</text>
    ${F(i)?l`<line class="whisker" x1=${t(i)} x2=${t(u)} y1=${n} y2=${n} />`:null}
    ${F(p)?l`<circle class="dot hollow" cx=${t(p)} cy=${n} r="4" />`:null}
    ${F(c)?l`<circle class="dot ${r}" cx=${t(c)} cy=${n} r=${m} />`:null}`}function Pn({histogram:e}){let{edges:t,counts:n}=e,s=Math.max(...n,1),r=ue(t[0],t.at(-1),10,390);return l`<svg class="histogram" viewBox="0 0 400 120" aria-hidden="true">
    ${n.map((o,a)=>{let c=o/s*86,[i,u]=[t[a],t[a+1]];return l`<rect class="column" x=${r(i)+.5} width=${Math.max(1,r(u)-r(i)-1)}
        y=${96-c} height=${c}><title>${we(i)} to ${we(u)}: ${o}</title></rect>`})}
    <line class="axis" x1="10" x2="390" y1="96" y2="96" />
    ${Ne(t[0],t.at(-1)).map(o=>l`<text class="tick" x=${r(o)} y="112" text-anchor="middle">${we(o)}</text>`)}
  </svg>`}function Nn({points:e}){if(!e||e.length<2)return null;let t=e.map(([u])=>u),n=([,u,p])=>p??u,s=([,u,,p])=>p??u,r=e.flatMap(u=>[u[1],n(u),s(u)]),o=ue(Math.min(...t),Math.max(...t),2,118),a=ue(Math.min(...r),Math.max(...r),20,3),c=([u])=>o(u),i=kt(e,c,u=>a(n(u)),u=>a(s(u)));return l`<svg class="spark" viewBox="0 0 120 23" width="100" height="23" aria-hidden="true">
    <polygon class="band" points=${i} />
    <polyline class="mean" points=${e.map(u=>`${c(u)},${a(u[1])}`).join(" ")} />
  </svg>`}function Dn({parts:e}){let t=e.reduce((s,[,r])=>s+r,0),n=e.reduce((s,[r,o])=>s+r*o,0);return l`<div class="tally" aria-hidden="true">${e.map(([s,r])=>l`<span class=${s?"own":"ties"} style=${{flexGrow:r}}></span>`)}</div>
    <span class="soft">${n} of the model, ${t-n} of the environment</span>`}var De=class{diff(t,n,s={}){let r;typeof s=="function"?(r=s,s={}):"callback"in s&&(r=s.callback);let o=this.castInput(t,s),a=this.castInput(n,s),c=this.removeEmpty(this.tokenize(o,s)),i=this.removeEmpty(this.tokenize(a,s));return this.diffWithOptionsObj(c,i,s,r)}diffWithOptionsObj(t,n,s,r){var o;let a=y=>{if(y=this.postProcess(y,s),r){setTimeout(function(){r(y)},0);return}else return y},c=n.length,i=t.length,u=1,p=c+i;s.maxEditLength!=null&&(p=Math.min(p,s.maxEditLength));let m=(o=s.timeout)!==null&&o!==void 0?o:1/0,d=Date.now()+m,$=[{oldPos:-1,lastComponent:void 0}],h=this.extractCommon($[0],n,t,0,s);if($[0].oldPos+1>=i&&h+1>=c)return a(this.buildValues($[0].lastComponent,n,t));let v=-1/0,f=1/0,w=()=>{for(let y=Math.max(v,-u);y<=Math.min(f,u);y+=2){let S,b=$[y-1],_=$[y+1];b&&($[y-1]=void 0);let M=!1;if(_){let L=_.oldPos-y;M=_&&0<=L&&L<c}let E=b&&b.oldPos+1<i;if(!M&&!E){$[y]=void 0;continue}if(!E||M&&b.oldPos<_.oldPos?S=this.addToPath(_,!0,!1,0,s):S=this.addToPath(b,!1,!0,1,s),h=this.extractCommon(S,n,t,y,s),S.oldPos+1>=i&&h+1>=c)return a(this.buildValues(S.lastComponent,n,t))||!0;$[y]=S,S.oldPos+1>=i&&(f=Math.min(f,y-1)),h+1>=c&&(v=Math.max(v,y+1))}u++};if(r)(function y(){setTimeout(function(){if(u>p||Date.now()>d)return r(void 0);w()||y()},0)})();else for(;u<=p&&Date.now()<=d;){let y=w();if(y)return y}}addToPath(t,n,s,r,o){let a=t.lastComponent;return a&&!o.oneChangePerToken&&a.added===n&&a.removed===s?{oldPos:t.oldPos+r,lastComponent:{count:a.count+1,added:n,removed:s,previousComponent:a.previousComponent}}:{oldPos:t.oldPos+r,lastComponent:{count:1,added:n,removed:s,previousComponent:a}}}extractCommon(t,n,s,r,o){let a=n.length,c=s.length,i=t.oldPos,u=i-r,p=0;for(;u+1<a&&i+1<c&&this.equals(s[i+1],n[u+1],o);)u++,i++,p++,o.oneChangePerToken&&(t.lastComponent={count:1,previousComponent:t.lastComponent,added:!1,removed:!1});return p&&!o.oneChangePerToken&&(t.lastComponent={count:p,previousComponent:t.lastComponent,added:!1,removed:!1}),t.oldPos=i,u}equals(t,n,s){return s.comparator?s.comparator(t,n):t===n||!!s.ignoreCase&&t.toLowerCase()===n.toLowerCase()}removeEmpty(t){let n=[];for(let s=0;s<t.length;s++)t[s]&&n.push(t[s]);return n}castInput(t,n){return t}tokenize(t,n){return Array.from(t)}join(t){return t.join("")}postProcess(t,n){return t}get useLongestToken(){return!1}buildValues(t,n,s){let r=[],o;for(;t;)r.push(t),o=t.previousComponent,delete t.previousComponent,t=o;r.reverse();let a=r.length,c=0,i=0,u=0;for(;c<a;c++){let p=r[c];if(p.removed)p.value=this.join(s.slice(u,u+p.count)),u+=p.count;else{if(!p.added&&this.useLongestToken){let m=n.slice(i,i+p.count);m=m.map(function(d,$){let h=s[u+$];return h.length>d.length?h:d}),p.value=this.join(m)}else p.value=this.join(n.slice(i,i+p.count));i+=p.count,p.added||(u+=p.count)}}return r}};var x=e=>e==null?"\u2013":e.toLocaleString("en-US");function G(e){if(e==null)return"\u2013";if(e<1)return`${Math.round(e*1e3)} ms`;if(e<60)return`${e.toFixed(1)} s`;let t=Math.round(e),[n,s]=[Math.floor(t/3600),Math.floor(t%3600/60)];return n?`${n} h ${s} min`:`${s} min ${t%60} s`}function pe(e,t=Date.now()){let n=(t-Date.parse(e))/1e3;return Number.isNaN(n)?"":n<60?"just now":n<3600?`${Math.floor(n/60)} min ago`:n<86400?`${Math.floor(n/3600)} h ago`:`${Math.floor(n/86400)} d ago`}var Us="\\u0000-\\u0008\\u000b\\u000c\\u000e-\\u001f\\u007f-\\u009f\\ufff9-\\ufffb",Fs=new RegExp(`[${Us}\\p{Default_Ignorable_Code_Point}]`,"gu"),qs=/\p{Extended_Pictographic}[\ufe0f\u{1f3fb}-\u{1f3ff}]*$/u,Ws=/^\p{Extended_Pictographic}/u,Rn=["Arab","Syrc","Mong","Nkoo","Deva","Beng","Guru","Gujr","Orya","Taml"].concat(["Telu","Knda","Mlym","Sinh","Khmr","Mymr","Tibt"]).map(e=>`\\p{Script_Extensions=${e}}`).join(""),Ks=new RegExp(`[${Rn}]$`,"u"),Gs=new RegExp(`^[${Rn}]`,"u"),zs=["gbeng","gbsct","gbwls"].map(e=>`\u{1F3F4}${[...e].map(t=>String.fromCodePoint(917504+t.charCodeAt(0))).join("")}\u{E007F}`);function Js(e,t,n){let s=n.slice(Math.max(0,t-12),t),r=n.slice(t+e.length,t+e.length+2);if(e==="\u200D"&&qs.test(s)&&Ws.test(r))return!0;if(e==="\u200D"||e==="\u200C")return Ks.test(s)&&Gs.test(r);if(e==="\uFE0E"||e==="\uFE0F")return/\p{Extended_Pictographic}$/u.test(s)||r[0]==="\u20E3";if(e>="\u{E0000}"&&e<="\u{E007F}"){let o=n.lastIndexOf("\u{1F3F4}",t);return zs.some(a=>n.startsWith(a,o)&&t<o+a.length)}return!1}function g(e){let t=(n,s,r)=>Js(n,s,r)?n:`\u27E8U+${n.codePointAt(0).toString(16).toUpperCase().padStart(4,"0")}\u27E9`;return String(e).replace(Fs,t)}function P(e,t=200){let n=g(e??"").replace(/\s+/g," ").trim();return n.length>t?`${n.slice(0,t-1)}\u2026`:n}var Vs=2e3,St=class extends De{tokenize(t){return t.match(/^\s+|\S+\s*/g)||[]}};function jn(e,t){let n=new St().diff(e,t,{maxEditLength:Vs});return n?n.map(r=>[r.added?"new":r.removed?"gone":"same",r.value]):[["gone",e],["new",t]].filter(([,r])=>r)}var Ct=e=>e!=="OR"&&/^[^\s"\\:=<>!-][^\s"\\:=<>!]*$/.test(e)?e:JSON.stringify(e);var Ys={passed:"\u2713",failed:"\u2717",errored:"!",truncated:"\u2026"},I=({outcome:e})=>l`<span class="sign ${e}" title=${e} role="img" aria-label=${e}>${Ys[e]||"\xB7"}</span>`;function Et({of:e}){let t=`${e.text.mean_scored} (${e.text.interval_scored}) without them`;return l`<span class="errored">${x(e.errors)} errored, counted as 0; ${t}</span>`}var nt=({of:e})=>l`<span class="mean"><b>${e.text.mean}</b>
    <span class="soft">${` (${e.text.interval}), n ${x(e.n)}`}</span>
    ${e.errors?l` <${Et} of=${e} />`:""}</span>`;function In({counts:e}){let t=["passed","failed","errored"].filter(n=>e[n]);return l`<div class="outcomes">
    <div class="tally" aria-hidden="true">${t.map(n=>l`<span class=${n} style=${{flexGrow:e[n]}}></span>`)}</div>
    <p>${t.map(n=>l`<span class="count"><${I} outcome=${n} /> ${x(e[n])} ${n}</span>`)}
      ${e.truncated?l`<span class="count soft"><${I} outcome="truncated" />
              ${` ${x(e.truncated)}`} of them truncated</span>`:null}</p></div>`}var Qs=e=>e!=null&&e!==""&&e!==!1,se=({rows:e})=>l`<dl class="facts">${e.filter(([,t])=>Qs(t)).map(([t,n])=>l`<div><dt>${t}</dt><dd>${n}</dd></div>`)}</dl>`,Q=({blocks:e})=>e.map(t=>t.line===void 0?l`<${Mt} table=${t} />`:l`<p class="note ${t.style}">${g(t.line)}</p>`);function Mt({table:e,caption:t}){let n=e.columns.map(({title:s,numeric:r,wrap:o},a)=>({title:s,numeric:r,wrap:o,cell:c=>g(c[a])}));return l`<${Z} caption=${t} rows=${[...e.rows,...e.totals]} columns=${n} />`}var D=({problem:e,retry:t})=>l`<div class="problem" role="alert"><p>${g(e.message)}</p>
    ${e.hint?l`<p class="soft">${g(e.hint)}</p>`:null}
    ${t?l`<button onClick=${t}>Try again</button>`:null}</div>`;function q({answer:e,view:t,refused:n}){let{data:s,problem:r,reload:o}=e;return!s&&!r?l`<p class="soft" role="status">Loading…</p>`:l`
    ${r?n?.(r)||l`<${D} problem=${r} retry=${o} />`:null}
    ${s?t(s):null}`}var Bn=({is:e})=>l`<div class="busy" role="progressbar" aria-label="searching" hidden=${!e}></div>`;function Z({caption:e,columns:t,rows:n,onRow:s,label:r}){let o=c=>s?{class:"opens",tabindex:0,onClick:()=>s(c),onKeyDown:i=>i.key==="Enter"&&s(c)}:{},a=c=>c.numeric?"num":c.wrap?"wrap":"";return l`<div class="scroll" tabindex="0" role="group" aria-label=${e||r||"table"}><table>
    ${e?l`<caption>${e}</caption>`:null}
    <thead><tr>${t.map(c=>l`<th scope="col" class=${c.numeric?"num":""}>${c.title||l`<span class="hidden">name</span>`}</th>`)}</tr></thead>
    <tbody>${n.map(c=>l`<tr ...${o(c)}>${t.map(i=>l`<td class=${a(i)}>${i.cell(c)}</td>`)}</tr>`)}</tbody>
  </table></div>`}var W=({label:e,value:t,options:n,none:s,onChange:r})=>l`<label class="select">${e}${" "}
    <select value=${t} onChange=${o=>r(o.target.value)}>
      ${s===void 0?null:l`<option value="">${s}</option>`}
      ${n.map(o=>l`<option value=${o}>${o}</option>`)}
    </select></label>`;function st({fields:e,chosen:t,onChange:n}){let s=(r,o)=>{let a=t.filter(c=>c!==r);n(o?[...a,r]:a)};return l`<details class="chooser"><summary>columns</summary><div>${e.map(r=>l`<label><input type="checkbox" checked=${t.includes(r)}
      onChange=${o=>s(r,o.target.checked)} /> ${g(r)}</label>`)}</div></details>`}var U=({path:e})=>l`<nav class="crumbs" aria-label="where this is">${e.map(([t,n])=>l`<a href=${n}>${g(t)}</a><span aria-hidden="true">/</span>`)}</nav>`,de=({state:e})=>e?l`<span class="live ${e}" role="status">${e}</span>`:null;var Hn=e=>e<1e6?`${Math.ceil(e/1e3)} KB`:`${(e/1e6).toFixed(1)} MB`;function ye({names:e}){let[t,n]=j("failures"),[s,r]=j(null);if(N())return null;let o={name:e,samples:t},a=s?.of===t?s:null,c=async()=>{r({of:t,busy:!0});let u=await ne("export",o).catch(p=>({problem:p}));r(p=>p?.of===t?{...u,of:t}:p)},i=async()=>{let u=d=>r({of:t,problem:d}),p=await en("exported",o).catch(u);if(!p)return;let m=document.createElement("a");m.href=URL.createObjectURL(p),m.download=`${e.join("-").replace(/[^\w.@-]+/g,"_").slice(0,120)}.html`,m.click(),setTimeout(()=>URL.revokeObjectURL(m.href),6e4)};return l`<details class="export"><summary>Export as one file</summary>
    <p><${W} label="conversations" value=${t} options=${["failures","all"]}
        onChange=${n} />${" "}
      <button onClick=${c} disabled=${a?.busy}>What will be in it?</button></p>
    <div role="status">
      ${a?.busy?l`<p class="soft">Making it…</p>`:null}
      ${a?.problem?l`<${D} problem=${a.problem} />`:null}
      ${a?.names?l`<p>${`Summaries, slices, rows and notes of ${a.names.join(", ")}, and `}
                ${`${x(a.inside)} of ${x(a.whole)} conversations: ${Hn(a.bytes)}. `}
                Whoever has the file can read all of it.</p>
              <p><button onClick=${i}>Save ${Hn(a.bytes)}</button></p>`:null}</div></details>`}var Un="heldout-keys-off",Xs="input, textarea, select, [contenteditable]",Zs="a[href], button, summary, [role=button], tr[tabindex]",Re=[],ot="",Tt=()=>z.get(Un)==="1",Fn=e=>z.set(Un,e?"0":"1");function xe(e){return Re.push(e),()=>Re.splice(Re.indexOf(e),1)}var eo=(e,t)=>Object.keys(e).some(n=>n.startsWith(`${t} `));addEventListener("keydown",e=>{let{key:t,target:n}=e;if(Tt()||e.ctrlKey||e.metaKey||e.altKey)return;if(n.closest?.(Xs)){t==="Escape"&&n.blur();return}if((t==="Enter"||t===" ")&&n.closest?.(Zs))return;let s=ot?`${ot} ${t}`:t;ot="";let r=Re.findLast(({current:o})=>o[s]);r?(e.preventDefault(),r.current[s](e)):Re.some(({current:o})=>eo(o,t))&&(ot=t)});var ge=location.protocol==="about:"?document.documentElement.dataset.start||"#/":null,qn=[],to=()=>ge??location.hash;function Wn(e){qn.push(e)}function At(){for(let e of qn)e()}addEventListener("hashchange",()=>{At(),so()});var no=3e3,je=new Map,$e=0;history.scrollRestoration="manual";addEventListener("scroll",()=>je.set($e,{...je.get($e),top:scrollY}),{passive:!0});addEventListener("click",e=>{let t=e.target.closest?.("a")?.getAttribute("href");t&&je.set($e,{...je.get($e),href:t})});function so(){let e=history.state?.step,t=je.get(e);if($e=e??Date.now(),e===void 0&&history.replaceState({step:$e},""),document.getElementById("main")?.focus({preventScroll:!0}),scrollTo(0,0),!t)return;let n=performance.now()+no,s=()=>{n=0};for(let o of["wheel","keydown","pointerdown"])addEventListener(o,s,{once:!0,passive:!0});let r=()=>{let o=t.href&&document.querySelector(`a[href="${CSS.escape(t.href)}"]`);o&&o.focus({preventScroll:!0}),scrollTo(0,t.top||0),!((o||!t.href)&&Math.abs(scrollY-(t.top||0))<2)&&$e===e&&performance.now()<n&&requestAnimationFrame(r)};r()}ge===null&&history.replaceState({step:$e},"");ge&&addEventListener("click",e=>{let t=e.target.closest?.("a")?.getAttribute("href");t?.startsWith("#/")&&(e.preventDefault(),oe(t))});function oe(e){ge===null?location.hash=e:(ge=e,At(),scrollTo(0,0))}function rt(){let[e,t]=to().replace(/^#/,"").split(/\?(.*)/s);return{path:e.split("/").filter(Boolean).map(oo),params:new URLSearchParams(t||"")}}function oo(e){try{return decodeURIComponent(e)}catch{return e}}function k(e,t={}){let n=new URLSearchParams;for(let[r,o]of Object.entries(t))for(let a of[o].flat())a!=null&&a!==""&&n.append(r,String(a));let s=n.toString();return`#/${e.map(encodeURIComponent).join("/")}${s?`?${s}`:""}`}function O(e,t={}){oe(k(e,t))}function C(e){let t=rt(),n={};for(let r of new Set(t.params.keys()))n[r]=t.params.getAll(r);let s=k(t.path,{...n,...e});ge===null?history.replaceState(history.state,"",location.pathname+location.search+s):ge=s,At()}var ro=1e4;function lo(e){let t=null,[n,s,r,o]=[!1,!1,0,0],a=()=>{clearTimeout(t),t=null,s=!1},c=()=>{!s||n||t!==null||(t=setTimeout(e,Math.max(0,o-performance.now())))};return{cancel:a,changed(){s=!0,c()},begin(){a(),[n,r]=[!0,performance.now()]},end(){let i=performance.now();[n,o]=[!1,i+Math.min(ro,3*(i-r))],c()}}}function A(e,t={},n=()=>null,s=0){let[r,o]=j({data:null,problem:null,of:""}),[a,c]=j(""),[i,u]=ce(h=>h+1,0),p=Y(null);p.current??=lo(u);let m=Y(s),d=e===null?"":Ae(e,t);B(()=>{if(!d)return;let h=new AbortController;p.current.begin(),m.current=s;let v=f=>{h.signal.aborted||(p.current.end(),o(f))};return ne(e,t,h.signal).then(f=>v({data:f,problem:null,of:d}),f=>v(w=>({...w,problem:f}))),()=>{h.abort(),p.current.cancel()}},[d,i]),B(()=>{d&&m.current!==s&&p.current.changed(),m.current=s},[s]),B(()=>r.problem?.status===401?We(u):void 0,[r.problem]);let $=r.data&&d?n(r.data):null;return B(()=>$?Ge($,r.data.state||"",p.current.changed,c):void 0,[$?.join(`
`)]),d?{...r,live:a,isStale:r.of!==d,reload:u}:{data:null,problem:null,of:"",live:"",isStale:!1,reload:u}}function lt(e,t,n){let[s,r]=n,o=n.length===2,a=A(o?"curve-flips":null,{name:e,label:t,from_step:s,to_step:r}),{lost:c,gained:i}=a.data&&!a.isStale?a.data:{},u=c?[...c.rows,...i.rows].map(m=>m.id):[];return{answer:a,all:u,href:m=>k(["curve",e,"sample"],{id:m,label:t,step:r,from:s,to:r})}}function R(e){let t=Y(e);t.current=e,Tn(()=>xe(t),[])}function re(e){return ce(t=>!t,e)}var at=null,ao="./markdown.js";async function io(){let e=await(globalThis.heldoutMarkdown??import(ao));e.setElements(l),at=e}var Ot=class extends te{componentDidMount(){let t=n=>this.setState({problem:n});at||io().then(()=>t(null),t)}render({text:t,extracted:n},{problem:s}){return at?at.Markdown({text:t,extracted:n}):l`${s?l`<p class="soft">Markdown could not be loaded.</p>`:null}
      <pre class="said">${g(t)}</pre>`}};function co({text:e,mark:t}){if(!t)return g(e);let[n,s]=t;return l`${g(e.slice(0,n))}<mark title="what the grader extracted">${g(e.slice(n,s))}</mark>${g(e.slice(s))}`}function ke({before:e,after:t}){let n=jn(g(e||""),g(t||"")),s={gone:"del",new:"ins"};return l`<pre class="said diff">${n.map(([r,o])=>r==="same"?o:l`<${s[r]}>${o}<//>`)}</pre>`}function it({text:e,mark:t=null,rendered:n=!1}){return n?l`<${Ot} text=${e} extracted=${t&&e.slice(...t)} />`:l`<pre class="said"><${co} text=${e} mark=${t} /></pre>`}function uo({call:e}){return l`<div class="call">
    <div><span class="soft">tool call</span>
      ${e.problem?l` <span class="errored">${g(e.problem)}</span>`:""}</div>
    <${it} text=${`${e.name}(${e.arguments})`} />
    ${e.result===null?l`<p class="soft">no result</p>`:l`<div class="result ${e.failed?"errored":""}">
            <span class="soft">${e.failed?"result: the tool failed":"result"}</span>
            <${it} text=${e.result} /></div>`}
  </div>`}function po({reasoning:e,text:t,calls:n}){let s=n.flatMap(r=>[`${r.name}(${r.arguments})`,r.result]);navigator.clipboard?.writeText([e,t,...s].filter(Boolean).join(`

`))}function $o({tokens:e,seconds:t=null,reply_seconds:n=null}){return[e&&`${x(e)} tokens`,t!==null&&G(t),n!==null&&`reply ${G(n)}`].filter(Boolean).join(" \xB7 ")}function mo({turn:e,rendered:t,folded:n}){return l`<article class="turn ${e.role}"><details open>
    <summary>${e.role} <span class="soft">${$o(e)}</span></summary>
    ${e.reasoning?l`<details class="reasoning" open=${!n}>
            <summary>reasoning, ${x(e.reasoning.length)} characters</summary>
            <${it} text=${e.reasoning} /></details>`:null}
    ${e.images.map((s,r)=>l`<img class="said" src=${s} alt="image ${r+1} of the message" />`)}
    ${e.text?l`<${it} text=${e.text} mark=${e.mark} rendered=${t} />`:null}
    ${e.calls.map(s=>l`<${uo} call=${s} />`)}
  </details>
  <button class="plain copy" onClick=${()=>po(e)}>copy</button></article>`}function be({sample:e,rendered:t=!1,folded:n=!0,without:s=0}){return e.turns.length?l`<div class="conversation">${e.turns.slice(s).map(r=>l`<${mo} key=${r.place} turn=${r} rendered=${t} folded=${n} />`)}</div>`:l`<p class="soft">There is no conversation.</p>`}var le=28,ct=6e6,Se=100,[Kn,fo]=[1e3,3e4],ho=({status:e})=>e===0||e===422||e===429||e>=500;function go(e,t,n,s,r){let o=Math.max(0,t-n);return t*le<=ct?Math.min(o,Math.floor(e/le)):Math.round(e/Math.max(1,s-r)*o)}function bo(e,t,n,s,r){let o=Math.max(0,t-n);return t*le<=ct?e*le:o?e/o*(s-r):0}var Ce=class extends te{state={first:0,view:600};problem=null;pages=new Map;waiting=new Set;componentDidMount(){this.observer=new ResizeObserver(()=>this.setState({view:this.box.clientHeight})),this.observer.observe(this.box),this.box.addEventListener("wheel",this.onWheel,{passive:!1});let t={j:()=>this.move(this.props.selected+1),ArrowDown:()=>this.move(this.props.selected+1),k:()=>this.move(this.props.selected-1),ArrowUp:()=>this.move(this.props.selected-1),PageDown:()=>this.move(this.props.selected+this.visible-1),PageUp:()=>this.move(this.props.selected+1-this.visible),Home:()=>this.move(0),End:()=>this.move(this.props.total-1),Enter:()=>this.open()};this.release=xe({current:t}),this.forget=We(this.retry),this.fetch(),this.reveal(this.props.selected)}componentWillUnmount(){this.observer.disconnect(),this.release(),this.forget(),this.reset()}reset(){this.abort?.abort(),this.waiting.clear(),clearTimeout(this.timer),this.problem=null,this.pause=Kn}retry=()=>{clearTimeout(this.timer),this.problem=null,this.forceUpdate()};componentDidUpdate(t){t.version!==this.props.version&&(this.pages.clear(),this.reset(),this.box.scrollTop=0,this.setState({first:0})),t.selected!==this.props.selected&&this.reveal(this.props.selected),this.fetch()}get visible(){return Math.max(1,Math.floor(this.state.view/le)-1)}get spacer(){return Math.min(ct,this.props.total*le)+le}onScroll=()=>{let{scrollTop:t,clientHeight:n}=this.box,s=go(t,this.props.total,this.visible,this.spacer,n);s!==this.state.first&&!this.placed&&this.setState({first:s}),this.placed=!1};onWheel=t=>{if(this.props.total*le<=ct||t.ctrlKey)return;t.preventDefault();let n=Math.max(1,Math.round(Math.abs(t.deltaY)/le));this.show(this.state.first+Math.sign(t.deltaY)*n)};show(t){let n=Math.max(0,Math.min(t,this.props.total-this.visible));this.placed=!0,this.box.scrollTop=bo(n,this.props.total,this.visible,this.spacer,this.box.clientHeight),this.setState({first:n})}reveal(t){t<this.state.first?this.show(t):t>=this.state.first+this.visible&&this.show(t-this.visible+1)}move(t){this.box.focus({preventScroll:!0}),this.select(t)}select(t){this.props.total&&this.props.onSelect(Math.max(0,Math.min(t,this.props.total-1)))}open(t=this.props.selected){let n=this.rowAt(t);n&&!this.props.isStale&&this.props.onOpen(n,t)}rowAt(t){return this.pages.get(Math.floor(t/Se))?.[t%Se]}async fetch(){let{total:t,load:n}=this.props,s=Math.floor(this.state.first/Se),r=Math.floor(Math.min(t-1,this.state.first+this.visible+1)/Se);for(let o=s;o<=r;o++){if(this.problem||this.pages.has(o)||this.waiting.has(o)||t===0)continue;(!this.abort||this.abort.signal.aborted)&&(this.abort=new AbortController);let{signal:a}=this.abort;this.waiting.add(o);try{let c=await n(o*Se,Se,a);if(a.aborted)return;this.pages.set(o,c),this.pause=Kn}catch(c){if(a.aborted)return;this.fail(c)}this.waiting.delete(o),this.forceUpdate()}}fail(t){this.problem||(this.problem={problem:t,pause:ho(t)?this.pause:null},this.problem.pause&&(this.timer=setTimeout(this.retry,this.pause),this.pause=Math.min(fo,2*this.pause)))}render(){let{columns:t,total:n,label:s,isStale:r}=this.props,{first:o}=this.state,a=[];for(let i=o;i<Math.min(n,o+this.visible+2);i++)a.push(i);let c={gridTemplateColumns:t.map(i=>i.width).join(" ")};return l`${this.problem?l`<${vo} ...${this.problem} retry=${this.retry} />`:null}
    <div class="grid ${r?"stale":""}" role="grid" aria-label=${s}
      aria-busy=${r} aria-rowcount=${n} aria-colcount=${t.length} tabindex="0"
      onScroll=${this.onScroll}
      ref=${i=>{this.box=i}}>
      <div class="spacer" role="presentation" style=${{height:`${this.spacer}px`}}>
        <div class="pane" role="rowgroup">
          <div class="line head" role="row" style=${c}>${t.map(this.heading)}</div>
          ${a.map(i=>this.line(i,c))}
        </div>
      </div>
    </div>`}heading({title:t,numeric:n,sorted:s,onSort:r}){let o={ascending:" \u2191",descending:" \u2193"}[s]||"";return l`<span role="columnheader" class=${n?"num":""} aria-sort=${s}>
      ${r?l`<button class="plain" onClick=${r}>${t}${o}</button>`:t}</span>`}line(t,n){let{columns:s,selected:r,isAbsent:o}=this.props,a=this.rowAt(t),c=[t===r&&"selected",a&&o?.(a)&&"absent"].filter(Boolean).join(" "),i=()=>{this.select(t),this.open(t)};return l`<div key=${t} class="line ${c}" role="row" aria-rowindex=${t+1}
      aria-selected=${t===r} style=${n} onClick=${i}>
      ${s.map(u=>l`<span role="gridcell" class=${u.numeric?"num":""}>${a?u.cell(a):""}</span>`)}
    </div>`}};function vo({problem:e,pause:t,retry:n}){let s=t?` They are asked for again in ${t/1e3} s.`:"",r=`Rows could not be loaded: ${e.message.replace(/\.$/,"")}.${s}`;return l`<${D} problem=${{message:r,hint:e.hint}} retry=${n} />`}var Gn=["lost","gained","lower","higher","equal"],zn={lost:"failed",gained:"passed",lower:"failed",higher:"passed"},wo=200,Pt=100;function Jn({a:e,b:t,found:n,params:s}){let r=s.get("where")||"",o=s.get("sort")||"difference",a=Number(s.get("at")||0),c={a:e,b:t,metric:s.get("metric")||"",allow:s.getAll("allow"),where:r,sort:o},i=A("pairs",{...c,limit:Pt}),u=i.data,p=i.problem?.status===409?null:i.problem,m=async(v,f,w)=>v?(await ne("pairs",{...c,offset:v,limit:f},w)).rows:u.rows,d=A(a>=Pt?"pairs":null,{...c,offset:a,limit:1}),$=a<Pt?u?.rows[a]:d.data?.rows[0],h=(v,f)=>f===a&&O(["compare",e,t,"sample"],{id:v.id});return l`<h2>Samples</h2>
    <${_o} head=${u} where=${r} found=${n} />
    ${p?l`<${D} problem=${p} retry=${i.reload} />`:null}
    ${u?l`<p role="status" class="soft">${x(u.total)} of ${x(u.of)} samples${u.left_out?`; ${x(u.left_out)} more are not in the exported file`:""}</p>`:null}
    ${u?l`<div class="pairs"><div>
            <${Ce} label="samples of both runs" columns=${yo(o)} load=${m} total=${u.total}
               version=${i.of} isStale=${i.isStale||i.problem!==null}
              selected=${Math.min(a,Math.max(0,u.total-1))} isAbsent=${v=>v.inside===!1}
              onSelect=${v=>C({at:v})} onOpen=${h} /></div>
            ${d.problem?l`<${D} problem=${d.problem} retry=${d.reload} />`:null}
            ${$?l`<${xo} a=${e} b=${t} row=${$} />`:null}</div>`:null}`}function _o({head:e,where:t,found:n}){let[s,r]=j(null),o=()=>{s!==null&&(s!==t&&C({where:s,at:""}),r(null))};B(()=>{if(s===null)return;let u=setTimeout(o,wo);return()=>clearTimeout(u)},[s]);let a=t.split(/\s+/).filter(Boolean),c=u=>{let p=a.filter(m=>!Gn.includes(m.replace(/:yes$/,"")));C({where:(a.includes(u)?p:[...p,u]).join(" "),at:""})},i=n.pass_threshold===null?{lost:"the return fell",gained:"the return rose"}:{lost:`${n.a.name} passed, ${n.b.name} failed`,gained:`${n.a.name} failed, ${n.b.name} passed`};return l`<div class="toolbar">
    <input class="filter" type="search" aria-label="Filter samples" data-filter spellcheck="false"
      placeholder=${"filter: difference<0  level:hard  lost:yes  text:refund"} value=${s??t}
      onInput=${u=>r(u.target.value)} onBlur=${o}
      onKeyDown=${u=>u.key==="Enter"&&o()} />
    ${Gn.map(u=>l`<button aria-pressed=${a.includes(`${u}:yes`)} title=${i[u]}
        onClick=${()=>c(`${u}:yes`)}>${`${u} `}
        ${e?l`<span class="soft">${x(e.counts[u])}</span>`:null}</button>`)}</div>`}function yo(e){let t=(s,r)=>({...r,sorted:e===s?"ascending":e===`-${s}`?"descending":void 0,onSort:()=>C({sort:e===`-${s}`?s:`-${s}`,at:""})}),n=(s,r)=>t(s,{title:r,width:"70px",numeric:!0,cell:o=>o.text[s]});return[{title:"change",width:"96px",cell:s=>l`${zn[s.change]?l`<${I} outcome=${zn[s.change]} /> `:""}${s.change}`},t("id",{title:"sample",width:"minmax(90px, 1fr)",cell:s=>P(s.id,60)}),n("a","A"),n("b","B"),n("difference","B \u2212 A"),{title:"question",width:"minmax(120px, 2fr)",cell:s=>P(s.question??"")}]}function xo({a:e,b:t,row:n}){let{id:s}=n,r=n.inside!==!1,o=[A(r?"sample":null,{name:e,id:s}),A(r?"sample":null,{name:t,id:s})],[a,c]=o.map(p=>p.isStale?null:p.data),i=o.map(p=>p.problem).find(Boolean),u=(p,m)=>l`<p><span class="letter">${p}</span> ${m.text.reward}${" "}
      <${I} outcome=${m.outcome} /> <span class="errored">${g(m.error??"")}</span></p>
    <pre class="said clamp">${g(m.answer)}</pre>`;return l`<section class="answers" aria-label="both answers">
    <h3><a href=${k(["compare",e,t,"sample"],{id:s})}>${g(s)}</a></h3>
    ${r?null:l`<p class="soft">Its conversations are not in the exported file.</p>`}
    ${i?l`<${D} problem=${i} />`:null}
    ${a&&c?l`<p class="soft">${P(a.question,300)}</p>
            <p>target: <code>${P(a.target??"\u2013",120)}</code></p>
            ${a.repeats.length>1?l`<p class="soft">The first of ${a.repeats.length} attempts; the page of both
                    conversations has all.</p>`:null}
            ${u("A",a)}${u("B",c)}
            ${a.answer===c.answer?l`<p class="soft">The answers are the same.</p>`:l`<p class="soft">from A to B</p>
                    <${ke} before=${a.answer} after=${c.answer} />`}`:null}</section>`}var ko={b_better:"better",a_better:"worse",inconclusive:"inconclusive"},ut=new Map;function Yn({a:e,b:t,params:n}){let s=n.get("by")||"",r=n.get("metric")||"",o=n.getAll("allow"),a=A("compare",{a:e,b:t,by:s,metric:r,allow:o});return R({w:()=>O(["compare",t,e],{allow:o}),Escape:()=>O(["runs"])}),B(()=>{ut.set(e,(ut.get(e)||new Set).add(t))},[]),l`<${q} answer=${a} view=${u=>{if(a.problem?.status===409)return null;let p=ut.get(e)?.size||0;return l`
      <${U} path=${[["runs",k(["runs"])]]} />
      <h1>${g(t)} <span class="soft">compared with</span> ${g(e)}</h1>
      <p class="verdict ${ko[u.verdict]||""}" role="status">${g(u.sentence)}</p>
      ${p>2?l`<p class="note yellow">${p} runs were compared with ${g(e)} since this page was
              opened: the best of many looks better than it is. ${N()?"":So(e)}</p>`:null}
      <div class="columns">
        <section>
          <div class="sides">
            <${Vn} letter="A" name=${e} side=${u.a} /><${Vn} letter="B" name=${t} side=${u.b} />
          </div>
          <${Co} found=${u} metric=${r} by=${s} />
          <${Q} blocks=${u.blocks.slice(2)} />
          <${Eo} blocks=${u.slice_blocks} />
        </section>
        <aside>
          ${u.paired?l`<${Mo} found=${u} />`:null}
          <${To} rows=${u.config} />
          ${N()?null:l`<p><a href=${Qn([e,t])}>Compare with more runs</a></p>`}
          <${ye} names=${[e,t]} />
        </aside>
      </div>
      ${u.paired?l`<${Jn} a=${e} b=${t} found=${u} params=${n} />`:null}`}} refused=${u=>u.status===409?l`<${Nt} names=${[e,t]} problem=${u} allow=${o} />`:null} />`}var Qn=e=>k(["several"],{run:e}),So=e=>l`<a href=${Qn([e,...ut.get(e)])}>Compare them in one table</a>`;function Nt({names:e,problem:t,allow:n}){let s=(r,o)=>C({allow:o?[...n,r]:n.filter(a=>a!==r)});return l`<${U} path=${[["runs",k(["runs"])]]} />
    <h1>${e.map(g).join(" and ")}</h1>
    <p class="verdict">Not compared: a difference would not be the policy's alone.</p>
    <${D} problem=${t} />
    <p>Compare them all the same, although these differ:</p>
    <p>${[...new Set([...n,...t.kinds])].map(r=>l`<label class="allow"><input type="checkbox" checked=${n.includes(r)}
        onChange=${o=>s(r,o.target.checked)} /> ${r}</label>`)}</p>`}var Vn=({letter:e,name:t,side:n})=>l`<div><span class="letter">${e}</span><div>
    <a href=${k(["run",t])}>${g(t)}</a>${" "}
    <span class="soft">${g(n.model||"")}</span><br /><${nt} of=${n} /></div></div>`;function Co({found:e,metric:t,by:n}){let s=(u,{difference:p,low:m,high:d})=>({label:u,value:p,low:m,high:d}),r=e.slices.map(u=>s(u.value===null?"\u2013":g(u.value),u)),o=e.with_errors,a=o?[s(`errored as ${e.errors_as??0}`,o),s(e.scored_samples,e)]:[s("all samples",e)];a[a.length-1].strong=!0;let c=l`<${W} label="metric" value=${t||"reward"}
    options=${["reward","passed",...e.metrics]}
    onChange=${u=>C({metric:u==="reward"?"":u})} />`,i=l`<${W} label="slices by" value=${n} none="no key" options=${e.keys}
    onChange=${u=>C({by:u})} />`;return l`<h2>${g(e.b.name)} − ${g(e.a.name)}, ${e.metric}</h2>
    <${_e} at=${0} rows=${[...r,...a]} detectable=${e.minimum_detectable} sign />
    ${r.length&&o?l`<p class="soft">Slices are drawn of what was scored; their numbers below have both
            readings.</p>`:null}
    <p class="toolbar">${N()?null:c}${e.keys.length?i:null}</p>`}function Eo({blocks:e}){if(!e.length)return null;let t=e.findLastIndex(n=>n.columns)+1;return l`<details><summary>Slices in numbers</summary>
      <${Q} blocks=${e.slice(0,t)} /></details>
    <${Q} blocks=${e.slice(t)} />`}function Mo({found:e}){return l`<h2>Sample by sample</h2>
    <div class="tally" aria-hidden="true">${["wins","ties","losses"].map(n=>l`<span class=${n} style=${{flexGrow:e[n]||.001}}></span>`)}</div>
    <p>${g(e.b.name)} is higher on <b>${x(e.wins)}</b>, lower on${" "}
      <b>${x(e.losses)}</b>, equal on ${x(e.ties)}.</p>`}function To({rows:e}){let t=(n,s)=>l`<span class="letter">${n}</span> ${P(s??"\u2013",120)}`;return l`<h2>What differs in the settings</h2>
    ${e.length?l`<dl class="settings">${e.map(n=>l`<dt>${g(n.key)}</dt>
              <dd>${t("A",n.a)}<br />${t("B",n.b)}</dd>`)}</dl>`:l`<p class="soft">Nothing.</p>`}`}var[Ee,me,Lo]=[16,296,334];function pt(e){let t=[...new Set(e.flatMap(({points:c})=>c.map(i=>i.step)))];t.sort((c,i)=>c-i);let n=xt(1240),s=n<700?58:150,[r,o]=[t[0],t.at(-1)],a=n-36;return{steps:t,width:n,left:s,right:a,x:ue(r,o===r?r+1:o,s,a)}}var Me=({steps:e},t,n)=>e[Math.max(0,Math.min(e.length-1,e.indexOf(t)+n))];function Ao(e){let t=[];for(let n of e){let s=t.at(-1);s?.at(-1).attempt===n.attempt?s.push(n):t.push([n])}return t}function dt({series:e,axis:t,at:n,onAt:s,over:r=[],chosen:o=[],windows:a=[],best:c,onPoint:i}){let{steps:u,width:p,left:m,right:d,x:$}=t,h=e.map(({points:M})=>M.filter(E=>F(E.mean))),f=[...h.flat(),...r].flatMap(M=>[M.mean,M.low,M.high,M.mean_scored]).filter(F),[w,y]=f.length?[Math.min(...f),Math.max(...f)]:[0,1],S=(y-w||.1)*.08,b=ue(w-S,y+S,me,Ee);return l`<svg class="curve" viewBox="0 0 ${p} ${Lo}" width=${p} role="group"
    aria-label="Mean by training step; the table below has the numbers" onPointerMove=${M=>{let E=M.currentTarget.getBoundingClientRect(),L=(M.clientX-E.left)/E.width*p;s(u.reduce((V,X)=>Math.abs($(X)-L)<Math.abs($(V)-L)?X:V))}}>
    ${Ne(w-S,y+S).map(M=>l`<line class="rule" x1=${m} x2=${d} y1=${b(M)} y2=${b(M)} />
        <text class="tick" x=${m-8} y=${b(M)+4} text-anchor="end">${we(M)}</text>`)}
    ${Ne(u[0],u.at(-1),p/110).map(M=>l`<text class="tick" x=${$(M)} y=${me+20} text-anchor="middle">${M}</text>`)}
    <text class="tick" x=${d} y=${me+36} text-anchor="end">training step</text>
    ${a.map(([M,E])=>l`<rect class="window" x=${$(M)-6} width=${$(E)-$(M)+12} y=${Ee}
        height=${me-Ee} />`)}
    <line class="cross" x1=${$(n)} x2=${$(n)} y1=${Ee} y2=${me} />
    ${e.map(({points:M},E)=>l`<g class="series s${E} ${r.length?"thin":""}">
        ${Ao(h[E]).map((L,V)=>l`<${Xn} line=${L} x=${$} y=${b} hasBand=${!r.length} />
            ${V?l`<${Po} point=${L[0]} x=${$(L[0].step)} />`:null}`)}
        ${M.filter(L=>!F(L.mean)).map(L=>l`<line class=${Oo(L)} x1=${$(L.step)} x2=${$(L.step)} y1=${me-8} y2=${me}>
              <title>step ${L.step}: ${L.result?"without this metric":L.note}</title></line>`)}
        ${h[E].map(L=>l`<${No} point=${L} x=${$(L.step)} y=${b} onPoint=${i}
            isChosen=${o.includes(L.step)} isBest=${L.step===c} />`)}</g>`)}
    ${r.length?l`<g class="over"><${Xn} line=${r} x=${$} y=${b} hasBand /></g>`:null}
  </svg>`}var Oo=({result:e,pending:t})=>`missed ${e?"unmeasured":t?"pending":""}`;function Xn({line:e,x:t,y:n,hasBand:s}){let r=kt(e.filter(o=>F(o.low)),o=>t(o.step),o=>n(o.low),o=>n(o.high));return l`${s?l`<polygon class="band" points=${r} />`:null}
    <polyline class="mean" points=${e.map(o=>`${t(o.step)},${n(o.mean)}`).join(" ")} />`}var Po=({point:e,x:t})=>l`<line class="resumed" x1=${t} x2=${t} y1=${Ee-12} y2=${me} />
    <text class="tick" x=${t+4} y=${Ee-4}>attempt ${e.attempt}</text>`;function No({point:e,x:t,y:n,isChosen:s,isBest:r,onPoint:o}){let{step:a,mean:c,low:i,high:u,mean_scored:p,errors:m,text:d}=e,h=`dot ${[e.fewer&&"hollow",s&&"chosen",r&&"best"].filter(Boolean).join(" ")}`,v=m?`, ${m} errored; ${d.mean_scored} without them`:"",f=`step ${a}: ${d.mean} (${d.interval}), n ${e.n}${v}`;return o?l`
    ${F(i)?l`<line class="whisker" x1=${t} x2=${t} y1=${n(i)} y2=${n(u)} />`:null}
    ${F(p)?l`<circle class="second" cx=${t} cy=${n(p)} r="4" />`:null}
    <circle class=${h} cx=${t} cy=${n(c)} r=${r?6:4} tabindex="0" role="button"
      aria-label="step ${a}, mean ${d.mean}" onClick=${()=>o(a)}
      onKeyDown=${w=>w.key==="Enter"&&o(a)}><title>${f}</title></circle>`:l`<circle class=${h} cx=${t} cy=${n(c)} r="3"><title>${f}</title></circle>`}function $t({series:e,at:t,metric:n,over:s=[]}){let r=i=>i.find(u=>u.step===t),o=e.map(({name:i,points:u},p)=>({name:i,css:`s${p}`,point:r(u)}));s.length&&o.push({name:"mean over runs",css:"over",point:r(s)});let a=i=>u=>u.point?i(u.point):"\u2013",c=i=>l`<span class="key mean ${i.css}"></span> ${P(i.name,60)}`;return l`<div class="readout"><${Z} label="at step ${t}" rows=${o} columns=${[{title:`step ${t}`,cell:c},{title:n,numeric:!0,cell:a(i=>i.text.mean)},{title:"95% interval",cell:a(i=>i.text.interval)},{title:"n",numeric:!0,cell:a(i=>i.n)},{title:"errors",numeric:!0,cell:a(i=>x(i.errors))},{title:"verdict",cell:a(i=>i.kind||"\u2013")},{title:"note",wrap:!0,cell:i=>P(i.point?i.point.note||"":"no eval at this step")}]} /></div>`}var Do={p:"passed",f:"failed",e:"errored"},Dt=e=>["from","to"].map(t=>e.get(t)).filter(Boolean).map(Number);function Zn({name:e,params:t}){let n=t.get("metric")||"",s=A("curve",{name:e,label:t.get("label")||"",metric:n},()=>[e]),[r,o]=j(null),[,a]=ce(f=>f+1,0);B(()=>{let f=setInterval(a,1e4);return()=>clearInterval(f)},[]);let c=Dt(t),i=f=>{let[w,y]=[...c.slice(-1),f].sort((S,b)=>S-b);C(c.includes(f)?{from:"",to:""}:{from:w,to:y??""})},u=f=>{let w=s.data?.points.filter(_=>_.result).map(_=>_.step)||[],[y=w[0],S=w.at(-1)]=c,b=w[w.indexOf(S)+f];c.length<2?C({from:y,to:S}):b!==void 0&&b>y&&C({from:y,to:b})},p=[{name:e,points:s.data?.points||[]}],m=pt(p),d=m.steps.includes(r)?r:m.steps.at(-1),$=s.data?.labels.length>1?s.data.label:"",h=lt(e,$,s.data?c:[]);return R({Escape:()=>O(["runs"]),ArrowLeft:()=>o(Me(m,d,-1)),ArrowRight:()=>o(Me(m,d,1)),n:()=>h.all[0]&&oe(h.href(h.all[0])),"[":()=>u(-1),"]":()=>u(1)}),l`<${q} answer=${s} view=${f=>{let w=f.points.filter(y=>y.result);return l`
      <${U} path=${[["runs",k(["runs"])]]} />
      <h1>${g(f.name)} ${f.live?l`<${de} state=${s.live||"live"} />`:null}</h1>
      <${Ro} name=${e} curve=${f} />
      <${jo} curve=${f} hasResults=${w.length>0} />
      ${m.steps.length?l`<${Io} curve=${f} results=${w} chosen=${c} onPoint=${i}
                series=${p} axis=${m} at=${d} onAt=${o} />
              <${qo} name=${e} label=${$} version=${w.length} axis=${m} at=${d} />`:null}
      <${Uo} curve=${f} />
      <div class="columns">
        <section>
          ${f.verdict?.since_start?l`<p>${g(f.verdict.since_start)}</p>`:null}
          ${f.best?l`<p>${g(f.best.sentence)}</p>`:null}
          ${c.length===2?l`<${Fo} flips=${h} steps=${c} results=${w} />`:l`<p class="soft">Choose two points to see which samples flipped between them${c.length?`; step ${c[0]} is chosen`:""}.</p>`}
        </section>
        <${Bo} curve=${f} />
      </div>
      <details><summary>All points</summary>
        <${Ho} curve=${f} /></details>`}} />`}function Ro({name:e,curve:t}){return t.labels.length<2?null:l`<nav class="tabs" aria-label="evals">${t.labels.map(n=>l`<a aria-current=${n===t.label?"true":void 0}
      href=${k(["curve",e],{label:n})}>${g(n)}</a>`)}</nav>`}function jo({curve:e,hasResults:t}){let{verdict:n,no_verdict:s,every:r}=e;if(!t)return l`<p class="verdict" role="status">No point yet.${r?` An eval is due every ${r} steps.`:""}</p>`;let o=n?.sentence||(s?`no verdict: ${s}`:"no verdict yet");return l`<p class="verdict ${n?.kind||""}" role="status" aria-live="polite">
    ${g(o)}</p>`}function Io({curve:e,results:t,chosen:n,onPoint:s,...r}){let{metric:o,best:a}=e,c=o==="reward"?e.verdict?.windows||[]:[],i=o==="reward"?a?.step??null:null,u=t.some(m=>F(m.low)),p=(m,d)=>l`<span class="key ${m}"></span> ${d}`;return l`
    <${dt} ...${r} chosen=${n} windows=${c} best=${i} onPoint=${s} />
    <${$t} series=${r.series} at=${r.at} metric=${o} />
    <p class="legend soft">
      ${p("mean",u?`mean ${o} with its 95% interval`:`${o}, without an interval`)}
      ${c.length?p("window","the two windows of the verdict"):null}
      ${i===null?null:p("best","best step")}
      ${t.some(m=>m.mean_scored!==null)?p("second","without errored items, which the mean counts as 0"):null}
      ${t.some(m=>m.fewer)?p("hollow","fewer items than the others"):null}
      ${t.some(m=>m.mean===null)?p("unmeasured",`an eval without ${o}`):null}
      ${e.points.some(m=>!m.result)?p("tick","skipped or in flight"):null}</p>`}function Bo({curve:e}){let t=e.points.at(-1),n=e.every?`; due every ${e.every} steps`:"",s=[["status",g(e.status.line)],["last point",t&&l`step ${t.step}, <time datetime=${t.time}>${pe(t.time)}</time>${n}`],["model",e.model&&g(e.model)],["evals took",G(e.seconds)],["superseded",e.superseded>0&&`${x(e.superseded)} results left out: a later attempt went back to before them`],["last skip",e.last_skip&&g(e.last_skip)],["saved to",l`<code>${g(e.path)}</code>`]];return l`<aside><h2>About this curve</h2><${se} rows=${s} />
    <${ye} names=${[e.name]} /></aside>`}function Ho({curve:e}){let t=n=>n.run&&!N()?l`<a href=${k(["run",n.run])}>${n.step}</a>`:n.step;return l`<${Z} label="points" rows=${[...e.points].reverse()} columns=${[{title:"step",numeric:!0,cell:t},{title:e.metric,numeric:!0,cell:n=>n.text.mean},{title:"95% interval",cell:n=>n.text.interval},{title:"n",numeric:!0,cell:n=>n.n},{title:"errors",numeric:!0,cell:n=>x(n.errors)},{title:"took",numeric:!0,cell:n=>G(n.seconds)},{title:"verdict",cell:n=>n.kind||"\u2013"},{title:"note",wrap:!0,cell:n=>g(n.note)}]} />`}function Uo({curve:e}){let t=e.labels.filter(o=>o!==e.label),n=new Map([...t.map(o=>[`${e.name}: ${o}`,[e.name,o]]),...e.others.map(o=>[o,[o,""]])]),s=n.size>0&&!N(),r=([o,a])=>O(["curves"],{curve:[e.name,o],label:[e.label,a],metric:e.metric});return l`<p class="toolbar">
    ${e.metrics.length>1?l`<${W} label="metric" value=${e.metric} options=${e.metrics}
            onChange=${o=>C({metric:o===e.metrics[0]?"":o})} />`:null}
    ${s?l`<${W} label="draw together with" value="" none="another curve"
            options=${[...n.keys()]} onChange=${o=>o&&r(n.get(o))} />`:null}</p>`}function Fo({flips:e,steps:t,results:n}){let[s,r]=t,{answer:o}=e;if(o.problem)return l`<${D} problem=${o.problem} />`;if(!o.data||o.isStale)return null;let a=t.map(u=>n.find(p=>p.step===u)?.run),c=a.every(Boolean)&&!N(),i=(u,p,{total:m,rows:d})=>l`<section>
    <h3><${I} outcome=${p} /> ${u} <span class="soft">${x(m)}</span></h3>
    <ul class="flips" tabindex="0" aria-label=${u}>${d.map(({id:$,text:h})=>l`<li><a href=${e.href($)}>${P($,60)}</a>${" "}
        <span class="soft">${h.before} → ${h.after}</span></li>`)}</ul>
    ${m>d.length?l`<p class="soft">and ${x(m-d.length)} more</p>`:null}
  </section>`;return l`<h2>From step ${s} to step ${r}</h2>
    <${Q} blocks=${o.data.notes} />
    <p class="soft">These two were picked by looking. What the curve allows one to say is the verdict
      above. ${c?l`<a href=${k(["compare",...a])}>Compare the two evals</a>`:""}</p>
    <div class="pair">
      ${i("lost","failed",o.data.lost)}${i("gained","passed",o.data.gained)}</div>
    ${e.all.length?l`<p class="soft"><kbd>n</kbd> goes through them.</p>`:null}`}function qo({name:e,label:t,version:n,axis:s,at:r}){let o=A(n>1?"strip":null,{name:e,label:t},void 0,n);if(o.problem)return l`<${D} problem=${o.problem} />`;let a=o.data;if(!a?.rows.some(f=>/[pfe]/.test(f.cells)))return null;let{x:c,width:i,left:u}=s,p=a.steps.map(c),m=p.slice(1).map((f,w)=>f-p[w]),d=Math.max(1.5,Math.min(36,...m)-1),$=(f,w)=>[...f].map((y,S)=>y===w?`M${(p[S]-d/2).toFixed(1)} 1h${d}v13h-${d}z`:"").join(""),h=f=>l`<span class="key ${f}"></span> ${f} `,v=f=>`${[...f].filter(w=>w==="p").length} of ${f.length}`;return l`<h2>Samples by step</h2>
    <p class="legend soft">One line per sample, those that flipped last first.
      ${["passed","failed","errored"].map(h)}</p>
    <div class="heat" tabindex="0" role="region" aria-label="samples by step"><div>
      ${a.rows.map(({id:f,cells:w})=>l`<a href=${k(["curve",e,"sample"],{id:f,label:t,step:r})} title=${f}
          aria-label="${f}: ${v(w)} steps passed">
          <span class="id" style=${{width:`${u-24}px`}}>${P(f,24)}</span>
          <svg viewBox="0 0 ${i} 15" width=${i} height="15" aria-hidden="true">${Object.entries(Do).map(([y,S])=>l`<path class=${S} d=${$(w,y)} />`)}</svg></a>`)}
      <i class="cross" style=${{left:`${c(r)}px`}}></i></div></div>
    ${a.total>a.rows.length?l`<p class="soft">the first ${a.rows.length} of ${x(a.total)}</p>`:null}`}var Wo=({name:e,label:t,labels:n})=>n.length>1?`${e}: ${t}`:e;function es({params:e}){let[t,n]=[e.getAll("curve"),e.getAll("label")],s=e.get("metric")||"",r=A("curves",{name:t,label:n,metric:s},()=>[...new Set(t)]),[o,a]=j(null),[c,i]=re(!0),u=(r.data?.series||[]).map(f=>({...f,name:Wo(f),of:f.name})),p=pt(u),m=p.steps.includes(o)?o:p.steps.at(-1),d=t.map((f,w)=>n[w]||"");R({ArrowLeft:()=>a(Me(p,m,-1)),ArrowRight:()=>a(Me(p,m,1)),Escape:()=>O(["runs"])});let $=(f,w="")=>C({curve:[...t,f],label:[...d,w]}),h=f=>C({curve:t.toSpliced(f,1),label:d.toSpliced(f,1)});return l`<${q} answer=${r} view=${f=>{let w=f.series.flatMap(b=>b.labels.filter(_=>!u.some(M=>M.of===b.name&&M.label===_)).map(_=>[b.name,_])),y=new Map([...w.map(([b,_])=>[`${b}: ${_}`,[b,_]]),...f.others.map(b=>[b,[b]])]),S=c?f.over_runs:[];return l`
      <${U} path=${[["runs",k(["runs"])]]} />
      <h1>${u.length} curves <${de} state=${r.live} /></h1>
      ${u.map((b,_)=>l`<${Ko} one=${b} css="s${_}" metric=${f.metric}
          onRemove=${u.length>1?()=>h(_):null} />`)}
      ${p.steps.length?l`<${dt} series=${u} axis=${p} at=${m} onAt=${a} over=${S} />
              <${$t} series=${u} at=${m} metric=${f.metric} over=${S} />`:l`<p class="soft">No point yet.</p>`}
      <${Go} found=${f} runs=${u.length} isOn=${c} onTurn=${i} />
      <p class="toolbar">
        <${W} label="metric" value=${f.metric} options=${f.metrics}
          onChange=${b=>C({metric:b===f.metrics[0]?"":b})} />
        ${y.size&&u.length<6?l`<${W} label="add" value="" none="a curve" options=${[...y.keys()]}
                onChange=${b=>b&&$(...y.get(b))} />`:null}
        <span class="soft">← → move the crosshair</span></p>`}} />`}function Ko({one:e,css:t,metric:n,onRemove:s}){let{kind:r="",sentence:o="no verdict"}=e.verdict||{},a=e.points.filter(u=>u.result),c=a.length>0&&a.every(u=>!F(u.mean)),i=k(["curve",e.of],{label:e.labels.length>1?e.label:""});return l`<p class="of-series"><span class="key mean ${t}"></span>${" "}
    <a href=${i}>${g(e.name)}</a>${" "}
    <span class="badge ${r}">${r||"no verdict"}</span>${" "}
    <span class="soft">${r?g(o):""}</span>${" "}
    ${c?l`<span class="errored">has no ${g(n)}</span>`:null}${" "}
    ${s?l`<button class="plain" aria-label="remove ${e.name}" onClick=${s}>✕</button>`:null}</p>`}function Go({found:e,runs:t,isOn:n,onTurn:s}){return e.no_mean?l`<p class="soft">No mean over training runs: ${g(e.no_mean)}.
    Each band is the 95% interval of one curve's own mean, over its samples.</p>`:e.over_runs.length?l`<p><label><input type="checkbox" checked=${n} onChange=${s} />
      ${` mean over ${t} training runs`}</label></p>
    <p class="soft">${n?l`The band is the 95% interval of the mean over training runs: each run's mean is one value,
            n is ${t}. It says how far the mean of other runs, with other seeds, may be. It is drawn at
            the steps at which every run has a whole eval.`:"Each band is the 95% interval of one curve's own mean, over its samples."}</p>`:l`<p class="soft">No mean over training runs: there is no step at
    which all ${t} have a whole eval.</p>`}function ts({name:e,params:t}){let n=t.get("label")||"",s=A("history",{name:e,label:n,id:t.get("id")}),r=Dt(t),o=lt(e,n,r),a=o.all.indexOf(t.get("id")),c=b=>o.all[a+b]&&oe(o.href(o.all[a+b])),i={label:n,from:t.get("from"),to:t.get("to")},[u,p]=re(!1),[m,d]=re(!0),$=t.get("only")==="changed",h=(s.data?.steps||[]).filter(b=>!$||b.changed),v=h.find(b=>String(b.step)===t.get("step"))||h.at(-1),f=h.indexOf(v),w=b=>h[f+b]&&C({step:h[f+b].step});R({"[":()=>w(-1),"]":()=>w(1),n:()=>c(1),p:()=>c(-1),m:p,d,Escape:()=>O(["curve",e],i)});let y=()=>C({only:$?"":"changed"});return l`<${q} answer=${s} view=${b=>l`
    <${U} path=${[["runs",k(["runs"])],[b.name,k(["curve",b.name],i)]]} />
    <h1>${g(b.id)} <span class="soft">across steps</span></h1>
    ${a>=0?l`<p class="toolbar"><button onClick=${()=>c(-1)} title="p">← previous</button>
            <button onClick=${()=>c(1)} title="n">next →</button>
            <span class="soft">
              ${`${a+1} of ${o.all.length} flips from step ${r.join(" to ")}`}</span></p>`:null}
    ${b.question?l`<p>${g(b.question)}</p>`:null}
    ${b.target!==null?l`<p>target: <code>${g(b.target)}</code></p>`:null}
    <nav class="strip" aria-label="steps">${h.map(_=>l`<button class=${_.outcome} aria-pressed=${_===v}
        title="step ${_.step}: reward ${_.text.reward}" onClick=${()=>C({step:_.step})}>
        <${I} outcome=${_.outcome} /><span>${_.step}</span></button>`)}</nav>
    <div class="toolbar">
      <button aria-pressed=${$} onClick=${y}>only where the answer changed</button>
      <button aria-pressed=${m} onClick=${d}>difference</button>
      <button aria-pressed=${u} onClick=${p}>Markdown</button>
    </div>
    ${v?l`<${zo} id=${b.id} step=${v} before=${m?h[f-1]:void 0}
            rendered=${u} />`:null}`} />`}function zo({id:e,step:t,before:n,rendered:s}){let r=t.run&&!N(),o=A(r?"sample":null,{name:t.run,id:e}),a=t.attempts>1?l` <span class="soft">mean of ${t.attempts} attempts</span>`:"";return l`
    <h2>Step ${t.step}: <${I} outcome=${t.outcome} /> reward ${t.text.reward}${a}</h2>
    ${t.error?l`<p class="errored">errored: ${g(t.error)}</p>`:null}
    ${n?.answer!==void 0&&t.answer!==void 0?l`<${Jo} before=${n} step=${t} />`:null}
    ${o.problem?l`<${D} problem=${o.problem} />`:null}
    ${o.data&&!o.isStale?l`<${be} sample=${o.data} rendered=${s} />`:null}
    ${!r&&t.answer!==void 0?l`<pre>${g(t.answer)}</pre>`:null}
    ${t.answer===void 0?l`<p class="soft">The conversation of this step was not saved.</p>`:null}`}function Jo({before:e,step:t}){let n=t.answer===e.answer,s=`answer, from step ${e.step} to step ${t.step}`;return l`<p class="soft">${s}${n?": the same":""}</p>
    ${n?null:l`<${ke} before=${e.answer} after=${t.answer} />`}`}var H=new Map,jt=new Map,Rt=new Set,Ie=null,fe=({name:e,id:t,repeat:n})=>JSON.stringify([e,t,n]),ns=(e,t)=>e.label===t.label&&e.remark===t.remark,Vo=e=>({...e,label:e.label.trim(),remark:e.remark.trim()}),mt=({note:e})=>({label:e?.label||"",remark:e?.remark||""});function ft(){for(let e of Rt)e()}function It(){let[,e]=ce(t=>t+1,0);B(()=>(Rt.add(e),()=>Rt.delete(e)),[])}function ht(e){let t=jt.get(fe(e));return t?.notes_bytes>=e.notes_bytes?t:e}function ss(e){let t=fe(e),n=H.get(t);return n?n.problem?{...n,state:"refused"}:{...n,state:n.isDue||Ie===t?"writing":"typed"}:{...mt(ht(e)),state:"saved"}}function Bt(e,t){let n=fe(e),{name:s,id:r,repeat:o}=e,a=mt(ht(e)),c=H.get(n)||{...a,was:a,isDue:!1,problem:null};H.set(n,{...c,...t,attempt:{name:s,id:r,repeat:o}}),ft()}function Te(e){let t=fe(e);if(!H.has(t))return;let n=Vo(H.get(t));ns(n,n.was)&&!n.problem&&Ie!==t?H.delete(t):H.set(t,{...n,isDue:!0,problem:null}),ft(),Yo()}async function Yo(){if(!Ie)for(;;){let[e,t]=[...H].find(([,i])=>i.isDue)||[];if(!t)return;Ie=e,H.set(e,{...t,isDue:!1});let{attempt:n,label:s,remark:r,was:o}=t,a=await tn("note",{...n,label:s,remark:r,was:o}).catch(i=>({problem:i}));Ie=null;let c=H.get(e);if(a.problem)c&&H.set(e,{...c,isDue:!1,problem:a.problem});else{jt.set(e,a);let i=mt(a);c&&ns(c,i)?H.delete(e):c&&H.set(e,{...c,was:i})}ft()}}var os=()=>[...H.values()].filter(e=>e.problem);function rs({attempt:e,problem:t}){let n=H.get(fe(e));t.answer&&H.set(fe(e),{...n,was:mt(t.answer)}),Te(e)}function ls({attempt:e,problem:t}){t.answer&&jt.set(fe(e),t.answer),H.delete(fe(e)),ft()}addEventListener("beforeunload",e=>{if(H.size){for(let{attempt:t}of H.values())Te(t);H.size&&e.preventDefault()}});var Qo=["correct","incorrect","not_attempted"],Xo={typed:"not saved yet",writing:"saving\u2026",refused:"not saved"};function as({sample:e}){It();let t=Y(null),n=JSON.stringify([e.name,e.id,e.repeat]),{note:s,note_problem:r}=ht(e),{label:o,remark:a,state:c}=ss(e);if(R(e.takes_notes?{r:()=>t.current?.focus()}:{}),B(()=>()=>Te(e),[n]),!s&&!r&&!e.takes_notes)return null;let i=u=>{Bt(e,{label:o===u?"":u}),Te(e)};return l`<h2>Note</h2>
    ${r?l`<p class="errored">${g(r)}</p>`:null}
    ${s&&!s.is_current?l`<p class="errored">about an earlier answer to this sample</p>`:null}
    ${e.takes_notes?l`<div class="toolbar">${[...new Set([...Qo,o].filter(Boolean))].map(u=>l`<button aria-pressed=${o===u} onClick=${()=>i(u)}>
              ${g(u)}</button>`)}</div>
          <label class="remark">remark <textarea rows="3" maxlength="4000" key=${n} ref=${t} title="r"
            value=${a} onInput=${u=>Bt(e,{remark:u.target.value})}
            onBlur=${()=>Te(e)}></textarea></label>`:l`<p><b>${g(o)}</b> ${g(a)}</p>`}
    <p class=${c==="refused"?"errored":"soft"} role="status">${Xo[c]||(s?`written ${pe(s.time)}`:"")}</p>`}function is(){It();let e=os();return e.length?l`<div class="refusals">${e.map(t=>{let{attempt:n,problem:s}=t,{name:r,id:o,repeat:a}=n,c=k(["run",r,"sample"],{id:o,repeat:a||""}),i=s.answer?.note;return l`<div class="problem" role="alert" key=${JSON.stringify(n)}>
      <p>The note on <a href=${c}>${g(o)}</a> is not saved. ${g(s.message)}</p>
      ${s.answer?l`<p>It is now: <b>${g(i?.label||"no label")}</b>${" "}
              ${g(i?.remark||"")}</p>`:null}
      <p>Yours: <b>${g(t.label||"no label")}</b> ${g(t.remark)}</p>
      <p class="toolbar"><button onClick=${()=>rs(t)}>${s.answer?"Write mine over it":"Try again"}</button>
        <button onClick=${()=>ls(t)}>Discard mine</button></p></div>`})}</div>`:null}function cs({name:e}){let t=A("notes",{name:e});if(t.problem?.status===404)return null;if(t.problem)return l`<${D} problem=${t.problem} />`;if(!t.data?.total)return null;let{total:n,counts:s,rows:r}=t.data,o=Object.entries(s).map(([c,i])=>`${i} ${c||"without a label"}`),a=({id:c,repeat:i})=>k(["run",e,"sample"],{id:c,repeat:i||""});return l`<h2>Notes</h2>
    <p>${x(n)} of reviewers: ${g(o.join(", "))}</p>
    <${Z} label="notes" rows=${r} columns=${[{title:"sample",cell:c=>l`<a href=${a(c)}>${P(c.id,60)}</a>`},{title:"label",cell:c=>g(c.label)},{title:"remark",wrap:!0,cell:c=>P(c.remark,300)},{title:"",cell:c=>c.is_current?"":"about an earlier answer"}]} />`}function ps({a:e,b:t,params:n}){let s=n.get("id"),r={a:n.get("a")||"",b:n.get("b")||""},o=A("sample",{name:e,id:s,repeat:r.a}),a=A("sample",{name:t,id:s,repeat:r.b}),c=u=>{let p=(m,d)=>{let $=(m.data?.repeats||[]).map(h=>h.repeat);return $[$.indexOf(Number(r[d]))+u]??r[d]};C({a:p(o,"a")||"",b:p(a,"b")||""})};return R({Escape:()=>O(["compare",e,t]),"[":()=>c(-1),"]":()=>c(1)}),l`<${q} answer=${o} view=${u=>{if(!a.data)return a.problem?l`<${D} problem=${a.problem} />`:null;let p=a.data,m=Zo(u.turns,p.turns),d=m===1?"the first turn is":`the first ${m} turns are`;return l`
      <${U} path=${[["runs",k(["runs"])],[`${e} and ${t}`,k(["compare",e,t])]]} />
      ${a.problem?l`<${D} problem=${a.problem} retry=${a.reload} />`:null}
      <h1>${g(u.id)}</h1>
      <p>${g(u.question||"")}</p>
      <p>target: <code>${g(u.target??"\u2013")}</code></p>
      <h2>Answer, from ${g(e)} to ${g(t)}</h2>
      <${ke} before=${u.answer} after=${p.answer} />
      ${m?l`<details><summary>${d} the same in both</summary>
              <${be} sample=${{...u,turns:u.turns.slice(0,m)}} /></details>`:null}
      <div class="pair">
        <${us} side="a" name=${e} sample=${u} without=${m} />
        <${us} side="b" name=${t} sample=${p} without=${m} />
      </div>`}} />`}function Zo(e,t){let n=(r,o)=>JSON.stringify(r)!==JSON.stringify(t[o]),s=e.findIndex(n);return s<0?e.length:s}function us({side:e,name:t,sample:n,without:s}){let r=k(["run",t,"sample"],{id:n.id,repeat:n.repeat||""});return l`<section>
    <h2>${e.toUpperCase()}: <a href=${r}>${g(t)}</a>${" "}
      <${I} outcome=${n.outcome} /> ${n.text.reward}</h2>
    ${n.repeats.length>1?l`<div class="toolbar" role="group" aria-label="attempts of ${t}">${n.repeats.map(({repeat:o,outcome:a})=>l`<button aria-pressed=${o===n.repeat}
              onClick=${()=>C({[e]:o||""})}><${I} outcome=${a} />
              ${` attempt ${o+1}`}</button>`)}</div>`:null}
    ${n.error!==null?l`<p class="errored">errored: ${g(n.error)}</p>`:null}
    <${be} sample=${n} without=${s} /></section>`}function ds({name:e,params:t}){let s=A("run",{name:e},c=>c.unfinished?[e]:null),r=t.get("by")||"",o=A(r?"slices":null,{name:e,by:r});return R({f:()=>O(["run",e,"samples"],{where:"failed:yes"}),s:()=>O(["run",e,"samples"]),Escape:()=>O(["runs"])}),l`<${q} answer=${s} view=${c=>l`
    <${U} path=${[["runs",k(["runs"])]]} />
    <h1>${g(c.name)}${" "}
      ${c.unfinished?l`<span class="badge ${c.status}">${c.status}</span>`:null}${" "}
      <${de} state=${s.live} /></h1>
    <p class="lead">${c.model?l`model: <b>${g(c.model)}</b>`:""}
      ${c.parent?l` · trajectories of ${g(c.parent)}, scored again`:""}</p>
    <div class="columns">
      <section>
        <${er} run=${c} />
        <div class=${c.unfinished?"unfinished":""}>
          <${Mt} table=${c.table} caption="Summary" /></div>
        <${Q} blocks=${c.notes} />
        ${c.histogram?l`<h2>Rewards</h2><${Pn} histogram=${c.histogram} />`:null}
        <${cs} name=${c.name} />
        ${c.keys?.length?l`<${rr} run=${c} by=${r} answer=${o} />`:null}
      </section>
      <${or} run=${c} />
    </div>`} />`}function er({run:e}){let{numbers:t,outcomes:n,unfinished:s,asked:r}=e,o=c=>k(["run",e.name,"samples"],{where:c}),a=s&&r?` of ${x(r)}`:"";return l`
    <div class="headline ${s?"unfinished":""}">
      <div><span class="big">${t.text.mean}</span>${" "}
        <span class="soft">mean reward${s?", of what finished first":""}</span></div>
      <div>95% interval ${t.text.interval}, n ${x(t.n)}${a}</div>
      ${t.errors?l`<div><${Et} of=${t} /></div>`:null}
    </div>
    ${e.resume?l`<p>Go on with it: <code>${g(e.resume)}</code></p>`:null}
    <${sr} run=${e} />
    ${a?l`<progress aria-label="finished" value=${t.n} max=${r}></progress>`:null}
    ${n?l`<${In} counts=${n} />`:null}
    <p class="toolbar"><a class="button primary" href=${o("")}>All samples</a>
      ${n?.failed?l`<a class="button" href=${o("failed:yes")}>Failures</a>`:null}
      ${n?.errored?l`<a class="button" href=${o("errored:yes")}>Errors</a>`:null}</p>`}var[tr,nr]=[5,3];function sr({run:e}){let t=Y([]),{asked:n,numbers:s,status:r}=e;if(r!=="running"||!n||s.n>=n)return null;let o=t.current;o.at(-1)?.n!==s.n&&o.push({n:s.n,at:performance.now()/1e3}),o.length>100&&o.shift();let[a,c]=[o[0],o.at(-1)],[i,u]=[c.n-a.n,c.at-a.at];if(i<nr||u<tr)return l`<p class="soft" role="status">time left: not known yet</p>`;let p=(n-s.n)*u/i,m=`${(i/u).toPrecision(2)} items per second in the last ${G(u)}`;return l`<p role="status">about ${G(p)} left
    <span class="soft">${`, at ${m}; what is slow finishes last`}</span></p>`}function or({run:e}){let{pass_threshold:t,started:n,finished:s}=e,r=s&&n&&(Date.parse(s)-Date.parse(n))/1e3,o=u=>l`<pre tabindex="0">${g(JSON.stringify(u,null,2))}</pre>`,a=[["passes from",t===null?"nothing: the reward is the return":`reward \u2265 ${t}`],["samples",e.samples&&x(e.samples)+(e.repeats>1?`, ${e.repeats} attempts each`:"")],["tokens per item",e.tokens&&`median ${x(e.tokens.median)}, p95 ${x(Math.round(e.tokens.p95))}`],["time per item",e.seconds&&`median ${G(e.seconds.median)}, p95 ${G(e.seconds.p95)}`],["started",n&&l`<time datetime=${n} title=${n}>${pe(n)}</time>`],["took",r&&G(r)],["saved to",l`<code>${g(e.path)}</code>`]],{functions:c,versions:i}=e;return l`<aside>
    <h2>About this run</h2>
    <${Q} blocks=${e.about} />
    <${se} rows=${a} />
    <${ye} names=${[e.name]} />
    <details><summary>Settings</summary>${o(e.config)}</details>
    <details><summary>Functions and versions</summary>${o({functions:c,versions:i})}</details>
  </aside>`}function rr({run:e,by:t,answer:n}){return l`<h2>Slices</h2>
    <p><${W} label="by" value=${t} none="choose a key" options=${e.keys}
      onChange=${s=>C({by:s})} /></p>
    ${n.problem?l`<${D} problem=${n.problem} />`:null}
    ${n.data&&!n.isStale?l`<${lr} run=${e} slices=${n.data} />`:null}`}function lr({run:e,slices:t}){let{by:n,rows:s,all:r,total:o}=t,a=$=>$.value===null?"\u2013":g($.value),c=$=>$.value!==null&&O(["run",e.name,"samples"],{where:`${Ct(n)}:${Ct($.value)}`}),i=($,h)=>({label:$,value:h.mean,low:h.low,high:h.high,second:h.errors?h.mean_scored:null}),u=[{title:n,cell:a},{title:"n",numeric:!0,cell:$=>x($.n)},{title:"mean",numeric:!0,cell:$=>$.text.mean},{title:"95% interval",cell:$=>$.text.interval},{title:"scored only",numeric:!0,cell:$=>$.text.mean_scored,errors:!0},{title:"passed",numeric:!0,cell:$=>$.text.pass_rate},{title:"errors",numeric:!0,cell:$=>x($.errors)}],p=s.slice(0,40).map($=>i(a($),$)),m=o>s.length?`the first ${s.length} of ${x(o)} values`:"",d=new Set(e.notes.map($=>$.line));return l`
    <${_e} at=${r.mean} rows=${[...p,{...i("all",r),strong:!0}]} />
    <${Z} label="slices" onRow=${c} rows=${s}
      columns=${u.filter($=>r.errors||!$.errors)} />
    ${m?l`<p class="soft">${m}</p>`:null}
    ${r.errors?l`<p class="legend soft"><span class="key second"></span>
            without errored items, which the mean counts as 0</p>`:null}
    ${s.length>1?l`<p class="soft">${s.length} slices looked at: some will stand out by chance. Two runs
            compared by slices are corrected for that.</p>`:null}
    <${Q} blocks=${t.notes.filter($=>!d.has($.line))} />`}var Ut=e=>k([e.kind==="curve"?"curve":"run",e.name]);function ar(e){let t=(e.verdicts||[]).map(s=>s.kind);return[e.name,e.model,...e.tags,e.note,e.status,...t,e.kind].join(" ").toLowerCase()}var Ht=100,ir={run:e=>e.name,model:e=>e.model,mean:e=>e.mean,n:e=>e.n,errors:e=>e.errors,status:e=>e.status,started:e=>e.started};function cr(e,t){let n=t.replace(/^-/,""),s=ir[n]||(c=>c.settings[n]),r=t.startsWith("-")?-1:1,o=c=>c==null,a=(c,i)=>typeof c=="number"?c-i:String(c).localeCompare(String(i),"en",{numeric:!0});return[...e].sort((c,i)=>{let[u,p]=[s(c),s(i)];return o(u)||o(p)?o(u)-o(p):r*a(u,p)})}function ur(e,t){if(!t)return[["",e]];let n=new Map;for(let s of e)for(let r of t==="tag"?s.tags.length?s.tags:["no tag"]:[s.eval])n.set(r,[...n.get(r)||[],s]);return[...n]}function $s({params:e}){let t=A("runs",{},()=>[]),n=e.get("where")||"",s=e.get("sort")||"",r=e.get("group")||"",o=e.getAll("cols"),a=e.getAll("mark"),c=n.toLowerCase().split(/\s+/).filter(Boolean),i=t.data?.runs||[],u=i.filter(_=>a.includes(_.name)),p=i.filter(_=>c.every(M=>ar(_).includes(M))),m=ur(s?cr(p,s):p,r),d=m.flatMap(([,_])=>_),[$,h]=j(Ht),v=Math.min(Number(e.get("at")||0),Math.max(0,d.length-1)),f=_=>{C({at:Math.max(0,Math.min(_,d.length-1))||""}),document.querySelector("[data-list]")?.focus({preventScroll:!0}),requestAnimationFrame(()=>document.querySelector("tr.at")?.scrollIntoView({block:"nearest"}))},w=_=>{if(!_||_.problem)return;let E=u.filter(L=>L.kind==="curve"==(_.kind==="curve")).map(L=>L.name).filter(L=>L!==_.name);C({mark:a.includes(_.name)?E:[...E,_.name]})},y=()=>{let _=u.map(M=>M.name).reverse();_.length<2||(u[0].kind==="curve"?O(["curves"],{curve:_}):_.length===2?O(["compare",..._]):O(["several"],{run:_}))};R({j:()=>f(v+1),ArrowDown:()=>f(v+1),k:()=>f(v-1),ArrowUp:()=>f(v-1),Home:()=>f(0),End:()=>f(d.length-1),Enter:()=>d[v]&&!d[v].problem&&oe(Ut(d[v])),x:()=>w(d[v]),c:y});let S=(_,M,E=_)=>{let L=s===_?"ascending":s===`-${_}`?"descending":void 0,V=s===`-${_}`?_:s===_?"":`-${_}`;return l`<th scope="col" class=${M?"num":""} aria-sort=${L}>
      <button class="plain" onClick=${()=>C({sort:V,at:""})}>${P(E,30)}${{ascending:" \u2191",descending:" \u2193"}[L]||""}</button></th>`};return l`<${q} answer=${t} view=${({roots:_})=>{if(!i.length)return l`<h1>Runs</h1><p>No runs under ${_.join(", ")}.</p>
        <p class="soft"><code>heldout run heldout.examples.capitals</code> makes one with a small model
        on this machine; <code>heldout run FILE --model MODEL</code> runs an eval of yours.</p>`;let M=i.every(K=>K.kind==="curve"||!(K.min<0||K.max>1)),E=u.length>1,L=u[0]?.kind==="curve"?"Draw":"Compare",V=[...new Set(i.flatMap(K=>Object.keys(K.settings)))].sort(),X=Math.max($,v+Ht/2),Le=0;return l`
      <h1>Runs <${de} state=${t.live} /></h1>
      <div class="toolbar">
        <input type="search" aria-label="Filter by name, model or status" placeholder="name, model, status"
          value=${n} onInput=${K=>C({where:K.target.value,at:""})} data-filter />
        <${W} label="group by" value=${r} none="nothing" options=${["eval","tag"]}
          onChange=${K=>C({group:K,at:""})} />
        <${st} fields=${V} chosen=${o} onChange=${K=>C({cols:K})} />
        <button disabled=${!E} onClick=${y}>
          ${L} ${E?`the ${u.length} marked`:"runs: mark two or more"}</button>
      </div>
      <div class="scroll" tabindex="0" role="group" aria-label="runs" data-list><table class="runs">
        <thead><tr>
          <th scope="col"><span class="hidden">marked</span></th>${S("run")}${S("model")}
          ${S("mean",!0)}<th scope="col">95% interval</th>
          <th scope="col"><span class="hidden">chart</span></th>${S("n",!0)}${S("errors",!0)}
          ${S("status")}${S("started")}
          ${o.map(K=>S(K,!1,K.replace(/^sampling\./,"")))}
        </tr></thead>
        ${m.map(([K,Wt])=>Le<X&&l`<tbody key=${K}>
            ${r?l`<tr class="group"><th colspan=${10+o.length} scope="rowgroup">
              ${g(K)} <span class="soft">${x(Wt.length)}</span></th></tr>`:null}
            ${Wt.slice(0,Math.max(0,X-Le)).map(Be=>l`<${dr} key=${Be.name} run=${Be} at=${Le++===v} isBounded=${M}
                cols=${o} isMarked=${a.includes(Be.name)} onMark=${()=>w(Be)} />`)}</tbody>`)}
      </table></div>
      ${d.length>X?l`<${pr} rest=${d.length-X}
        onMore=${()=>h(X+Ht)} />`:null}
      <p class="soft" role="status">${x(p.length)} of ${x(i.length)} runs${a.length?` \xB7 marked: ${a.map(g).join(" and ")}`:""}${N()?"":` \xB7 ${_.join(", ")}`}</p>`}} />`}function pr({rest:e,onMore:t}){let n=Y(null);return B(()=>{let s=new IntersectionObserver(([r])=>r.isIntersecting&&t());return s.observe(n.current),()=>s.disconnect()}),l`<p ref=${n}><button onClick=${t}>${x(e)} more</button></p>`}function dr({run:e,at:t,isBounded:n,isMarked:s,cols:r,onMark:o}){let a=t?"at":"";if(e.problem)return l`<tr class=${a}><td></td><td>${g(e.name)}</td>
      <td colspan=${8+r.length} class="errored">${P(e.problem)}${e.repair?l` <code>${e.repair}</code>`:null}</td></tr>`;let c=e.kind==="curve",i=e.unfinished?"soft":"",u=c?l`<${mr} run=${e} />`:l`<span class="badge ${e.status}">${e.status}</span>`,p=d=>!d.target.closest("a, input, label")&&oe(Ut(e)),m=l`<input type="checkbox" aria-label="mark ${e.name}" checked=${s}
    onChange=${o} />`;return l`<tr class=${a} onClick=${p}>
    <td>${m}</td>
    <td><a href=${Ut(e)}>${g(e.name)}</a>
      ${e.kind==="run"?"":l` <span class="soft">${e.kind}</span>`}</td>
    <td class="soft">${P(e.model,40)}${e.tags.map(d=>l` <span class="badge">${g(d)}</span>`)}</td>
    <td class="num ${i}">${e.text.mean}</td>
    <td class=${i}>${e.text.interval}</td>
    <td>${$r(e,n)}</td>
    <td class="num">${x(e.n)}${(e.unfinished||e.status==="stopped")&&e.asked?l`<span class="soft"> of ${x(e.asked)}</span>`:""}</td>
    <td class="num">${e.errors?l`<span class="errored"><${I} outcome="errored" />${x(e.errors)}</span>`:x(e.errors)}</td>
    <td>${u}</td>
    <td class="soft" title=${e.started}>${pe(e.started)}</td>
    ${r.map(d=>l`<td class="setting">${P(e.settings[d]??"\u2013",40)}</td>`)}
  </tr>`}function $r(e,t){if(e.kind==="curve")return l`<${Nn} points=${e.spark} />`;if(!t)return null;let n=e.errors?e.mean_scored:null;return l`<${On} value=${e.mean} low=${e.low} high=${e.high} second=${n} />`}function mr({run:e}){let t=e.verdicts.length>1;return l`${e.verdicts.map(({label:n,kind:s,short:r,answers:o})=>l`<span class="badge ${s||""}" title=${g((o||[]).join(`
`))}>${t?`${P(n,24)}: `:""}${r||"no verdict"}</span> `)}<span class="soft">at step ${e.step??"\u2013"}${e.status==="finished"?"":`, ${e.status}`}${t?l`; numbers of ${P(e.verdicts[0].label,24)}`:""}</span>`}function ms({name:e,params:t}){let n=t.get("id"),s={where:t.get("where")||"",sort:t.get("sort")||"",at:t.get("at")||""},r={name:e,id:n,repeat:t.get("repeat")||""},o=A("sample",r),[a,c]=re(!1),[i,u]=re(!0),[p,m]=re(!1),d=A(p?"record":null,r),$=()=>O(["run",e,"samples"],s),{where:h,sort:v}=s,f=A("position",{name:e,where:h,sort:v,id:n,repeat:r.repeat}).data,w=E=>E&&O(["run",e,"sample"],{...s,id:E.id,repeat:E.repeat||"",at:E.at||""}),y=E=>{let{repeats:L,repeat:V}=o.data,X=L[L.findIndex(Le=>Le.repeat===V)+E];X&&C({repeat:X.repeat||""})};R({m:c,e:u,s:m,n:()=>w(f?.next),p:()=>w(f?.previous),"[":()=>y(-1),"]":()=>y(1),Escape:$});let S=(E,L,V)=>l`<button aria-pressed=${L} onClick=${V}>${E}</button>`,b=l`<div class="toolbar">
    ${S("Markdown",a,c)}
    ${S("reasoning",!i,u)}
    ${N()?null:S("JSON",p,m)}
    <span class="space"></span>
    ${f?l`<${fr} position=${f} where=${h} />`:null}
    <button disabled=${!f?.previous} onClick=${()=>w(f.previous)} title="p">
      ← previous</button>
    <button disabled=${!f?.next} onClick=${()=>w(f.next)} title="n">next →</button>
  </div>`,_=E=>d.data&&!d.isStale?l`<pre tabindex="0">${g(d.data.text)}</pre>`:d.problem?l`<${D} problem=${d.problem} />`:E.turns.length?l`<${be} sample=${E} rendered=${a} folded=${i} />`:l`<h2>Episode</h2><p class="soft">There is no conversation.</p>
      <${se} rows=${Object.entries(E.input).map(Ft)} />`;return l`<${q} answer=${o} view=${E=>l`
    <${U} path=${[["runs",k(["runs"])],[e,k(["run",e])],["samples",k(["run",e,"samples"],s)]]} />
    <h1><${I} outcome=${E.outcome} /> ${g(E.id)}</h1>
    <${hr} name=${e} sample=${E} list=${s} />
    ${E.error!==null?l`<div class="problem"><p><b>errored:</b> ${g(E.error)}</p>
            <p class="soft">It has no score. What was said until then is below.</p></div>`:null}
    <div class="columns">
      <section>${N()&&!E.turns.length?null:b}${_(E)}</section>
      <aside class="score"><${gr} sample=${E} /><${as} sample=${E} />
        <${vr} sample=${E} /></aside>
    </div>`} />`}function fr({position:e,where:t}){let{at:n,total:s}=e;return l`<span class="position" role="status">${n===null?"not among the":`${x(n+1)} of`} ${x(s)}${t?l` · <code>${g(t)}</code>`:null}</span>`}var Ft=([e,t])=>[g(e),g(t??"\u2013")];function hr({name:e,sample:t,list:n}){if(t.repeats.length<2)return null;let s=r=>k(["run",e,"sample"],{...n,id:t.id,repeat:r||""});return l`<nav class="tabs" aria-label="attempts">${t.repeats.map(({repeat:r,outcome:o})=>l`<a aria-current=${r===t.repeat?"true":void 0}
      href=${s(r)}><${I} outcome=${o} /> attempt ${r+1}</a>`)}</nav>`}function gr({sample:e}){let t=e.answer?l`<span class="clamp">${g(e.answer)}</span>`:l`<em>none</em>`;return l`<h2>Score</h2>
    <p class="headline"><span class="big">${e.text.reward}</span> <span class="soft">reward</span>${" "}
      <${I} outcome=${e.outcome} /> ${e.outcome}</p>
    ${e.metrics.map(n=>l`<${br} metric=${n} />`)}
    <${se} rows=${[["target",e.target!==null&&l`<code>${g(e.target)}</code>`],["answer",e.turns.length>0&&t],["final state",e.outcome_state&&l`<code>${g(e.outcome_state)}</code>`]]} />`}function br({metric:e}){let{name:t,text:n,weight:s,extracted:r}=e,o=r===null?l`<em>nothing</em>`:l`<code>${g(r)}</code>`;return l`<div class="metric">
    <div><b>${g(t)}</b> ${n.value}${" "}
      <span class="soft">${s?`\xD7 ${s}`:"tracked only"}</span></div>
    ${e.has_extracted?l`<div>extracted: ${o}</div>`:null}
    ${e.note?l`<div class="soft">${g(e.note)}</div>`:null}
    ${e.reply?l`<details><summary>the judge's reply</summary>
            <pre class="said" tabindex="0">${g(e.reply)}</pre></details>`:null}
  </div>`}function vr({sample:e}){let{ended_by:t,limit:n,truncated:s,finish_reason:r}=e.stop,o=[n?`limit: ${n}`:t,s?"last turn truncated":null,r?`finish reason ${r}`:null],{tokens:a}=e,c=[["ended by",g(o.filter(Boolean).join(", "))],["tokens",a&&`${x(a.prompt)} in, ${x(a.completion)} out`],["token trace",e.trace&&l`<${Dn} parts=${e.trace} />`],["took",e.seconds!==null&&G(e.seconds)],["requests",e.requests],...Object.entries(e.metadata).map(Ft)];return l`<h2>How it went</h2><${se} rows=${c} />
    ${e.turns.length?l`<details><summary>Input</summary>
            <${se} rows=${Object.entries(e.input).map(Ft)} /></details>`:null}
    ${e.tools.length?l`<details><summary>Tools (${e.tools.length})</summary>
            ${e.tools.map(({name:i,description:u,parameters:p})=>l`<h3>${g(i)}</h3>
                ${u?l`<p>${g(u)}</p>`:null}
                <pre class="said">${g(p)}</pre>`)}</details>`:null}`}var fs="heldout-views",hs=50;function gt(){try{return JSON.parse(z.get(fs)||"[]").filter(t=>typeof t.name=="string").slice(-hs)}catch{return[]}}function gs({name:e,view:t}){let[n,s]=j(gt),[r,o]=j(""),[a,c]=j(""),i=Y(null);if(!z.works())return null;let u=v=>{z.set(fs,JSON.stringify(v.slice(-hs))),s(gt())},p=v=>gt().filter(f=>f.name!==v),m=()=>{let v=r.trim();if(!v)return;u([...p(v),{name:v,...t}]);let f=gt().some(w=>w.name===v);c(f?`saved ${g(v)}`:"the browser did not keep it"),o("")},d=v=>{u(p(v)),c(`deleted ${g(v)}`),i.current.querySelector("summary").focus()},$=()=>i.current.removeAttribute("open"),h=k([],t);return l`<details class="chooser views" ref=${i}><summary>views</summary><div>
    ${n.map(({name:v,...f})=>{let w=k([],f)===h;return l`<span><a href=${k(["run",e,"samples"],f)} onClick=${$}
          aria-current=${w?"true":void 0}>${g(v)}</a>
        <button class="plain" aria-label="delete ${g(v)}"
          onClick=${()=>d(v)}>×</button></span>`})}
    <span><input type="text" aria-label="name of this view" placeholder="name of this view"
        maxlength="60" value=${r} onInput=${v=>o(v.target.value)}
        onKeyDown=${v=>v.key==="Enter"&&m()} />
      <button disabled=${!r.trim()} onClick=${m}>save</button></span>
    <span class="soft" role="status">${a}</span></div></details>`}var wr=[["failed","failed:yes"],["errored","errored:yes"],["truncated","truncated:yes"]],_r=200,yr=1e3,bs=new Map;function vs({name:e,params:t}){let n=t.get("where")||"",s=t.get("sort")||"",r=Number(t.get("at")||0),o=t.getAll("cols"),a={name:e,where:n,sort:s,cols:o},c=xr(a),i=c.data,u=i&&!c.isStale&&!c.problem,p=u&&i.total!==null,m=kr(e,n,u&&i.mean&&i.picked==="metadata"),d=Sr(e,i),$=v=>{let f=n.split(/\s+/).filter(Boolean),w=f.includes(v)?f.filter(y=>y!==v):[...f,v];C({where:w.join(" "),at:""})};R({f:()=>$("failed:yes"),Escape:()=>O(["run",e])});let h=n.split(/\s+/);return l`
    <${U} path=${[["runs",k(["runs"])],[e,k(["run",e])]]} />
    <h1>Samples</h1>
    <div class="toolbar">
      <${Er} where=${n} completions=${i?.completions||[]} isBad=${c.problem!==null} />
      ${wr.map(([v,f])=>l`<button aria-pressed=${h.includes(f)} onClick=${()=>$(f)}>
          <${I} outcome=${v} />${` ${v}`}
          ${p?l` <span class="soft">${x(i.counts[v])}</span>`:null}</button>`)}
      ${i?.fields.length&&!N()?l`<${st} fields=${i.fields} chosen=${o.length?o:i.extra}
              onChange=${v=>C({cols:v.length?v:["none"]})} />`:null}
      <${gs} name=${e} view=${{where:n,sort:s,cols:o}} />
      ${u&&i.total&&!N()?l`<${Mr} request=${a} />`:null}
    </div>
    <${Tr} problem=${c.problem} where=${n} retry=${c.reload} />
    ${u?l`<${Lr} head=${i} slices=${m} fresh=${d} onFresh=${c.reload} />`:i&&c.problem?l`<p class="soft" role="status">The rows are those of the last filter.</p>`:null}
    <${Bn} is=${i&&c.isStale&&!c.problem} />
    ${i?l`<${Ar} head=${i} request=${a} answer=${c} at=${r} />`:c.problem?null:l`<p class="soft" role="status">Loading…</p>`}`}function xr(e){let t={...e,limit:100},n=e.where&&!e.sort,s=A("rows",n?{...t,quick:1}:t),r=s.data?.total===null&&!s.isStale,o=A(r?"rows":null,t);return r?o.data&&!o.isStale?o:{...s,problem:s.problem||o.problem}:s}function kr(e,t,n){let[,s]=j(0),r=bs.get(e)||new Set;return B(()=>{if(!n)return;let o=setTimeout(()=>{bs.set(e,r.add(t)),s(r.size)},yr);return()=>clearTimeout(o)},[e,t,n]),r.size}function Sr(e,t){let[n,s]=j(0);return B(()=>{if(t?.running)return Ge([e],"",(r,o)=>s(o.lines),()=>{})},[e,t?.running]),t?Math.max(0,n-t.of):0}function Cr(e,t){let n=/(?:^|\s)-?([^\s:=<>!"]+)$/.exec(e)?.[1].toLowerCase();return n!==void 0&&t.some(({term:s})=>s.toLowerCase().startsWith(n))}function Er({where:e,completions:t,isBad:n}){let[s,r]=j(null),o=s!==null&&Cr(s,t),a=()=>{s!==null&&(s!==e&&C({where:s,at:""}),r(null))};B(()=>{if(s===null||o)return;let u=setTimeout(a,_r);return()=>clearTimeout(u)},[s]);let c=s??e,i=c.replace(/\S*$/,"");return l`<input class="filter" type="search" list="completions" aria-label="Filter" data-filter
      spellcheck="false" autocomplete="off" value=${c} aria-invalid=${n?"true":void 0}
      placeholder=${'filter: reward<0.5  level:hard  -truncated:yes  text:"refund"'}
      onInput=${u=>r(u.target.value)} onBlur=${a}
      onKeyDown=${u=>u.key==="Enter"&&a()} />
    <datalist id="completions">${t.map(({term:u,rows:p})=>l`<option value=${i+u}>${p===null?"":`${x(p)} rows`}</option>`)}</datalist>
    ${o?l`<span class="soft" role="status">Enter searches for the text</span>`:null}`}function Mr({request:e}){let[t,n]=j(""),s=async r=>{n("\u2026");try{let{text:o,rows:a,total:c}=await ne("table-file",{...e,cols:[],format:r}),i=document.createElement("a");i.href=URL.createObjectURL(new Blob([o])),i.download=`${e.name.replace(/[^\w.-]+/g,"-")}.${r}`,i.click(),URL.revokeObjectURL(i.href),n(a<c?`the first ${x(a)} of ${x(c)} rows`:"")}catch(o){n(o.message)}};return l`<span>${["csv","jsonl"].map(r=>l`<button onClick=${()=>s(r)} title="these rows as a file">${r}</button> `)}<span class="soft" role="status">${t}</span></span>`}function Tr({problem:e,where:t,retry:n}){return e?e.at===void 0?l`<${D} problem=${e} retry=${n} />`:l`<p class="problem" role="alert"><code>${g(t.slice(0,e.at))}
    <mark>${g(t.slice(e.at))}</mark></code>${` ${g(e.message)}`}</p>`:null}function Lr({head:e,slices:t,fresh:n,onFresh:s}){let r=[];e.mean&&r.push(l`mean reward <${nt} of=${e.mean} />`),e.picked==="outcome"&&r.push("picked by their result, so a mean of these would say nothing about the policy"),e.picked==="metadata"&&N()&&r.push("an exported file has no mean of some of the rows; the run's slices have theirs"),e.picked==="metadata"&&t>1&&r.push(`${t} slices looked at: some stand out by chance`),e.near?.length&&r.push(l`did you mean ${e.near.map(a=>l`<button onClick=${()=>C({where:a,at:""})}>${g(a)}</button> `)}`),N()&&e.inside<e.of&&r.push(`${x(e.inside)} of ${x(e.of)} conversations are in this file; other rows are grey`);let o=e.total===null?`at least ${x(e.rows.length)}`:x(e.total);return e.total===null&&r.unshift("counting\u2026"),l`<p role="status" class="counts">${o} of ${x(e.of)} rows
    ${r.map(a=>l` · <span class=${typeof a=="string"?"soft":""}>${a}</span>`)}
    ${n?l` · <button onClick=${s}>${x(n)} new rows</button>`:null}</p>`}function Ar({head:e,request:t,answer:n,at:s}){let{name:r,where:o,sort:a}=t,c=e.total??e.rows.length,i=n.of.replace("&quick=1",""),u=async(m,d,$)=>m===0?e.rows:(await ne("rows",{...t,offset:m,limit:d},$)).rows,p=(m,d)=>O(["run",r,"sample"],{id:m.id,repeat:m.repeat||"",where:o,sort:a,at:d});return l`<${Ce} label="samples" columns=${Or(e,a)} total=${c}
    version=${`${r} ${i} ${e.generation}`} isStale=${n.isStale||n.problem!==null}
    selected=${Math.min(s,Math.max(0,c-1))} load=${u}
    isAbsent=${m=>m.inside===!1}
    onSelect=${m=>C({at:m})} onOpen=${p} />`}function Or(e,t){let n=(i,u)=>({...u,sorted:t===i?"ascending":t===`-${i}`?"descending":void 0,onSort:()=>C({sort:t===`-${i}`?i:`-${i}`,at:""})}),s={width:"72px",numeric:!0},r=i=>e.repeats>1?l`<span class="soft"> #${i.repeat+1}</span>`:"",a=[{title:"extracted",width:"minmax(80px, 1.2fr)",cell:i=>i.error?l`<span class="errored">${P(i.error)}</span>`:i.extracted===null?l`<em>nothing</em>`:P(i.extracted??i.answer)},{title:"target",width:"minmax(60px, 1fr)",cell:i=>P(i.target)}],c=e.extra.map((i,u)=>n(i,{title:i.replace(/^(metric|metadata)\./,""),width:"minmax(60px, 1fr)",cell:p=>P(p.extra[u]??"",60)}));return[{title:l`<span class="hidden">outcome</span>`,width:"22px",cell:i=>l`<${I} outcome=${i.outcome} />`},n("id",{title:"sample",width:"minmax(90px, 1fr)",cell:i=>l`${P(i.id,60)}${r(i)}`}),n("reward",{...s,title:"reward",cell:i=>i.text.reward}),{title:"question",width:"minmax(140px, 3fr)",cell:i=>P(i.question)},...e.rows.some(i=>i.answer||i.error)?a:[],...c,n("tokens",{...s,title:"tokens",cell:i=>x(i.tokens)}),n("seconds",{...s,title:"time",cell:i=>G(i.seconds)})]}function ws({params:e}){let t=e.getAll("run"),n=e.getAll("allow"),s=A("several",{name:t,metric:e.get("metric")||"",allow:n});return R({Escape:()=>O(["runs"])}),l`<${q} answer=${s} view=${a=>{if(s.problem)return null;let[c,...i]=a.rows,u=i.map(h=>({label:g(h.name),value:h.readings[0].difference,low:h.readings[0].low,high:h.readings[0].high})),p=i.some(h=>h.has_errors),m=h=>C({run:[h,...t.filter(v=>v!==h)]}),d=(h,v)=>f=>f.readings?.[h].text[v]??"\u2013",$=[{title:"run",cell:h=>l`<a href=${k(["run",h.name])}>${g(h.name)}</a>`},{title:"mean reward",numeric:!0,cell:h=>h.text.mean},{title:"95% interval",cell:h=>h.text.interval},{title:"n",numeric:!0,cell:h=>x(h.n)},{title:"errors",numeric:!0,cell:h=>x(h.errors)},{title:`difference, ${a.metric}`,numeric:!0,cell:d(0,"difference")},{title:"simultaneous interval",cell:d(0,"interval")},{title:"p, Holm",numeric:!0,cell:d(0,"p")},{title:"of",numeric:!0,cell:h=>h.readings?.[0].n??"\u2013"},{title:"errored counted",cell:d(1,"difference"),errors:!0},{title:"its interval",cell:d(1,"interval"),errors:!0},{title:"verdict",cell:h=>h.verdict?l`<a href=${k(["compare",c.name,h.name],{allow:n})}>${h.verdict}</a>`:l`<span class="soft">compared with</span>`}];return l`
      <${U} path=${[["runs",k(["runs"])]]} />
      <h1>${i.length} runs <span class="soft">compared with</span> ${g(c.name)}</h1>
      <p>${i.length} comparisons, corrected for their number: p by Holm, and intervals by Bonferroni,
        so that all of them hold at once with 95% confidence. A verdict needs a whole interval on one side
        of 0${p?", with errored items counted and without them":""}.</p>
      <p><${W} label="compare with" value=${c.name} options=${t} onChange=${m} />${" "}
        <${W} label="add" value="" none="a run" options=${a.others}
          onChange=${h=>h&&C({run:[...t,h]})} /></p>
      <${_e} at=${0} rows=${u} sign />
      <${Z} label="runs" rows=${a.rows} columns=${$.filter(h=>p||!h.errors)} />
      ${i.map(h=>h.blocks.length?l`<details><summary>${g(h.name)}: what limits it</summary>
              <${Q} blocks=${h.blocks} /></details>`:null)}`}} refused=${a=>a.status===409?l`<${Nt} names=${t} problem=${a} allow=${n} />`:null} />`}var _s="heldout-theme",Pr=[["?","this help"],["/","filter"],["j k \u2191 \u2193 PgUp PgDn Home End","move"],["Enter","open"],["Esc","back"],["g r","all runs"],["x, c","mark a run; compare those marked"],["f","failures"],["r","remark on a sample, with --notes"],["n p","next and previous sample, or flip"],["[ ]","previous and next attempt, or step"],["\u2190 \u2192","move the crosshair of a curve"],["m e s d","Markdown; reasoning; JSON; difference"],["w","swap A and B"],["t","light or dark"],["y","copy the link"]];function Nr({path:e,params:t}){let[n,s,r]=e,o={run:[t.get("id"),r==="samples"&&"samples",s],compare:[t.get("id"),s&&`${s} and ${r}`],curve:[t.get("id"),s]}[n];return g([...(o||["runs"]).filter(Boolean),"heldout"].join(" \xB7 "))}function Dr({path:e,params:t}){let[n,s,r,o]=e,a=e.join("/");if(n==="run"&&s){let c={samples:vs,sample:ms}[r]||ds;return l`<${c} key=${a} name=${s} params=${t} />`}return n==="compare"&&s&&r?l`<${o==="sample"?ps:Yn} key=${a} a=${s} b=${r} params=${t} />`:n==="curve"&&s?l`<${r==="sample"?ts:Zn} key=${a} name=${s} params=${t} />`:n==="several"?l`<${ws} key=${a} params=${t} />`:n==="curves"?l`<${es} key=${a} params=${t} />`:l`<${$s} key="runs" params=${t} />`}function Rr({onClose:e}){return R({Escape:e}),l`<section class="help" aria-label="keys">
    <dl>${Pr.map(([t,n])=>l`<dt><kbd>${t}</kbd></dt><dd>${n}</dd>`)}</dl>
    <label><input type="checkbox" checked=${!Tt()}
      onChange=${t=>Fn(t.target.checked)} /> keys are on</label></section>`}var qt=class extends te{state={route:rt(),help:!1,copied:!1};componentDidMount(){this.componentDidUpdate(),Wn(()=>this.setState({route:rt()})),addEventListener("resize",()=>this.forceUpdate())}componentWillMount(){let t={"?":this.turnHelp,"g r":()=>O(["runs"]),"/":()=>document.querySelector("[data-filter]")?.focus(),Escape:()=>document.activeElement?.blur(),t:this.turnTheme,y:this.copy};xe({current:t})}turnHelp=()=>this.setState({help:!this.state.help});turnTheme=()=>{let t=matchMedia("(prefers-color-scheme: dark)").matches,s=(document.documentElement.dataset.theme||(t?"dark":"light"))==="dark"?"light":"dark";document.documentElement.dataset.theme=s,z.set(_s,s)};copy=async()=>{await navigator.clipboard.writeText(location.href),this.setState({copied:!0}),setTimeout(()=>this.setState({copied:!1}),1500)};skip=t=>{t.preventDefault(),document.getElementById("main").focus()};componentDidUpdate(){document.title=Nr(this.state.route)}render(t,{route:n,help:s,copied:r}){let o=N()&&document.querySelector("meta[name=made]")?.content;return l`
      <a class="skip" href="#main" onClick=${this.skip}>to the content</a>
      <header class="top"><a class="brand" href=${k(["runs"])}>heldout</a>
        <span class="space"></span>
        ${r?l`<span role="status">copied</span>`:null}
        <button class="plain" onClick=${this.turnTheme} aria-label="light or dark">◐</button>
        <button class="plain" onClick=${this.turnHelp} aria-label="keys" aria-expanded=${s}>?</button>
      </header>
      ${s?l`<${Rr} onClose=${this.turnHelp} />`:null}
      <main id="main" tabindex="-1"><${is} />${Dr(n)}</main>
      ${o?l`<footer class="soft">${o}</footer>`:null}`}};async function jr(){let e=z.get(_s);e&&(document.documentElement.dataset.theme=e),await Qt();let t=document.getElementById("data");t&&await Vt(t),Mn(l`<${qt} />`,document.getElementById("app"))}jr();})();
